"""How good a model is, and whether it may ship."""
