"""What a run leaves behind: step records, MLflow runs, lineage."""
