"""The kinds of sources, one file each."""
