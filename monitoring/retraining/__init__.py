"""When drift, a schedule or a person may start a retraining."""
