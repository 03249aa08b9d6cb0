"""Windows of live traffic, read from the prediction and outcome logs."""
