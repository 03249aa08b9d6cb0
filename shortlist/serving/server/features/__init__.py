"""Features of a request's rows: look-up tables, snapshots of views, and the model's tensors."""
