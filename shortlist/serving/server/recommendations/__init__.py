"""Requests for recommendations: slates, and the items that users were shown."""
