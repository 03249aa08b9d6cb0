"""Searching for better settings of a model: trials on the training days, measured on the validation days."""
