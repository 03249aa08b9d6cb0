"""The order in which scored candidates are shown: value, rules, diversity, exploration."""
