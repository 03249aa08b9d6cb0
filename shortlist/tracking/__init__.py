"""Step records, MLflow runs and lineage."""
