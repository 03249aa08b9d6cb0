"""A first spec for a log that nobody has declared yet: `shortlist init`."""
