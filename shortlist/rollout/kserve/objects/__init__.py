"""Objects that a rollout writes into the cluster: InferenceServices, the HTTPRoute, and what their pods report."""
