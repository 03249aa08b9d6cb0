"""From a request to scores: the service, and the events that it counts as they arrive."""
