"""Programs that serving starts: their ports, their launch, and their end."""
