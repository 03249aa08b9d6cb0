"""One thin Kubeflow wrapper per step, without logic of its own."""
