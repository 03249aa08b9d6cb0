"""A slate for a user: retrieval, filtering, scoring and ordering together."""
