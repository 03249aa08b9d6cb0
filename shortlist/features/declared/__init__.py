"""What a spec declares: kinds of features, the plan of a spec, slates, and the split of the days."""
