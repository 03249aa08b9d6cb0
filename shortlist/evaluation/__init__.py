"""Metrics of models, gates on them, and the blessing of a candidate for deployment."""
