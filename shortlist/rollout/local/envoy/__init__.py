"""Envoy as the gateway of the local stack: two processes on one port, so that either may fail."""
