"""Ingest and validate a log: files or a generated world, quarantine, side tables, collected rows."""
