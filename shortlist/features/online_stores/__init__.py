"""The online stores of Feast that a spec may name: one file per store, and the registry that lists them."""
