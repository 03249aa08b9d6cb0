"""Batches of a feature table for networks over embedded ids."""
