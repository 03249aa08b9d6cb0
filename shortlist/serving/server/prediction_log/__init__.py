"""Columns of the prediction log that the server writes."""
