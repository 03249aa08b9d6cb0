"""Hyperparameter search: trials learn from the training days and are measured on the validation days."""
