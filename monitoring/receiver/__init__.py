"""The webhook receiver: from a notification of Alertmanager to at most one training."""
