"""The graphs of Kubeflow Pipelines, and their compilation."""
