"""The Feast store that servers read, and its comparison with the training table."""
