"""One thin Kubeflow wrapper per step; no decisions."""
