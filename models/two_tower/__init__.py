"""Training of the source `two_tower`; its section and its files are in `shortlist.retrieval.sources.two_tower`."""
