"""Features: mergeable statistics of the log, their views, the feature table, and the Feast store."""
