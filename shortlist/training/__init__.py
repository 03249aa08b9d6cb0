"""One training run: where it runs, what it starts from, what it leaves behind."""
