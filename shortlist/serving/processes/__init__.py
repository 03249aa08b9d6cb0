"""Processes of serving: ports, launch, supervision and termination."""
