"""Running a spec on this machine."""
