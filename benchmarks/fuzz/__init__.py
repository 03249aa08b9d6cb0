"""Fuzzing: wrong requests to a real server, none of which may be its failure."""
