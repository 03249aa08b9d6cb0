"""Training by several processes, on this machine or as a Kubernetes job."""
