"""What a GPU gives: programs that check first, then measure, each optimisation on and off."""
