"""Programs of the servers' pods, and their settings."""
