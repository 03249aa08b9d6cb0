"""Columns and their values: names, hashes, numbers of keys, and loops over them."""
