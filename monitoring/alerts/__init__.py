"""Alerts: their conditions, queue and delivery."""
