"""The engines that make features: one file or folder per engine, and the registry that lists them."""
