"""Append-only streams of records on the local disk, durable before they are acknowledged."""
