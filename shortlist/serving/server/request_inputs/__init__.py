"""Reading the inputs of requests into typed columns."""
