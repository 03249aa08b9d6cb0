"""Kubeflow Pipelines: compiling for a cluster, submitting, scheduling."""
