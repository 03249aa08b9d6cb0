"""One training run: launch, earlier models, export, tracking and tuning."""
