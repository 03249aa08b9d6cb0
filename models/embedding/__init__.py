"""Parts of all networks over embedded ids: the fused table, loaders, training step, exported graph."""
