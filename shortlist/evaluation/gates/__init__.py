"""The gates that a candidate must pass, with their inputs and results."""
