"""Plain JSON over HTTP: what an application sends instead of tensors."""
