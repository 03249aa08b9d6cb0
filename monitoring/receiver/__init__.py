"""The webhook receiver: Alertmanager says that something is wrong, the book says whether a training may start."""
