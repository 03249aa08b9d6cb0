"""The pages of a run, its summary, and its Kubeflow artefacts."""
