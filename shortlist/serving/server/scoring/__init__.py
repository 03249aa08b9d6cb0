"""Scoring rows with Triton."""
