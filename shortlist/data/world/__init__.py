"""The generated world: its users, items and contents, the planted click probabilities, and the log drawn from it."""
