"""Training of the retrieval source `two_tower`; its section and its files are `shortlist.retrieval.sources.two_tower`."""
