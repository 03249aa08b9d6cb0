"""Alerts: when they fire, how they are queued and sent."""
