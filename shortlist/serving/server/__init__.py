"""The layer in front of Triton: takes requests, finds features, keeps the prediction log."""
