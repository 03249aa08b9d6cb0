"""Memory of embedding tables, and their placement on devices."""
