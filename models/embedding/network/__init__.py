"""The layers of networks over embedded ids, and their exported graph."""
