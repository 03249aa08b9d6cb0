"""How columns become what a model reads: one engine, statistics that merge."""
