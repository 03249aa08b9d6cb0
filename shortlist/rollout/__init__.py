"""Canary rollouts: state machine, analysis, controller and the two fleets."""
