"""Where what monitoring found and decided is kept."""
