"""Where a log comes from, and what of it may stay."""
