"""Estimates of what the slates of a release would earn, from a log that other policies filled."""
