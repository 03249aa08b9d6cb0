"""The graphs, how they are run here or submitted, and the command line."""
