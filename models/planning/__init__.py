"""How much memory embedding tables need, and where they go."""
