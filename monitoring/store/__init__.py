"""The monitoring store: reports, decisions and retrainings."""
