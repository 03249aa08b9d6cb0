"""From a blessed model to traffic: exported, served, rolled out, judged."""
