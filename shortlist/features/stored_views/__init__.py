"""Point-in-time views: the values of every key over time, their files, and their look-up."""
