"""The stages of a slate (retrieval, filters, scoring, ordering), and one request through all of them."""
