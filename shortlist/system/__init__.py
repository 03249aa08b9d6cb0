"""What every part stands on: the engine, progress, compiled loops."""
