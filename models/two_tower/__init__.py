"""Training of the source `two_tower`; section and files are in `shortlist.slates.retrieval.sources.two_tower`."""
