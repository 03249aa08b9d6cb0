"""Triton, transformers and Envoy on this machine, supervised."""
