"""Export of a trained model, with its feature transform, as a Triton model repository."""
