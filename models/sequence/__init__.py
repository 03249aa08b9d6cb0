"""Training of the source `sequence`; its section and its files are in `shortlist.retrieval.sources.sequence`."""
