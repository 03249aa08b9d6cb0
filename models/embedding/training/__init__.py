"""Training steps and fits of networks over embedded ids."""
