"""Parse delimited text and JSON lines: streams, quotes, blocks of rows, and the compiled reader of clean text."""
