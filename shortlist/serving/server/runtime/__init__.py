"""What a server process is told and what it reports: settings, metrics, health."""
