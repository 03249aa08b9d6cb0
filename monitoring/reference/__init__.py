"""The profile of the training data that live traffic is compared with."""
