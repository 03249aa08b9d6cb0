"""Evidence that an exported model gives the trained one's scores, and bears the load."""
