"""Side tables: their ingest, and vectors of their texts by a model of the user."""
