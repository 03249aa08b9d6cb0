"""The online stores of Feast that a spec may name: a file each, and the registry that lists them."""
