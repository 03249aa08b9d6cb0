"""Whether live data is distributed as the training data was."""
