"""The declaration: what a user may write in a spec."""
