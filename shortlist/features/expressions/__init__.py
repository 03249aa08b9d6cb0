"""Expressions as features: their syntax, and each operation as a query and as nodes of a graph."""
