"""A canary, its judge, and the way back."""
