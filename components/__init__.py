"""One thin Kubeflow wrapper per step, without logic of its own; one module per stage of a graph."""
