"""What all networks over embedded ids share: the fused table, loaders, training step, exported graph."""
