"""Validation of exported models: same scores as in training, and latency under load."""
