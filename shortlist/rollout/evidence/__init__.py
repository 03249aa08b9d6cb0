"""Evidence of a rollout: counts, logs, outcomes, sequential statistics."""
