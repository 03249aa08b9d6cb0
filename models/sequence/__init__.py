"""Training of the source `sequence`; its section and its files are in `shortlist.slates.retrieval.sources.sequence`."""
