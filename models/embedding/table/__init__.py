"""Embedding tables: layout on devices, cache, optimizers."""
