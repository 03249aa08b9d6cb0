"""Pods of servers and jobs on Kubernetes: their rights and resources, and a job's way from its start to its end."""
