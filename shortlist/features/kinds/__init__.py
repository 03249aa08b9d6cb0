"""The kinds of features: one file per kind, and the registry that lists them."""
