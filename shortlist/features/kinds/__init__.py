"""The kinds of features: a file per kind with everything that is its own, and the registry that lists them."""
