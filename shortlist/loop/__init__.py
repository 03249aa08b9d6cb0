"""A release before the users of a generated world, day after day, and what it earns beside other policies."""
