"""A trained model as a Triton model repository, its feature transform inside."""
