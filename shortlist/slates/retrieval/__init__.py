"""Retrieval: a few hundred candidates of all items for a user, fused from several sources."""
