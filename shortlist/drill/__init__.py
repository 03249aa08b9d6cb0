"""The drill: faults planted in a generated world, and how the loop recovers."""
