"""Read the files of a log and its side tables, and convert their rows to the declared types."""
