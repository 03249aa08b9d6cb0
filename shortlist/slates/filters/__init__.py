"""Which candidates may be shown to a user at all."""
