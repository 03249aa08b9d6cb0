"""What happens to a trained model after its gates: registration, release and deployment."""
