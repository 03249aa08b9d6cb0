"""Load generator, client, and replay of the log as user traffic."""
