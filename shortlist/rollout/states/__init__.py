"""The state machine of a rollout: phases, events, actions."""
