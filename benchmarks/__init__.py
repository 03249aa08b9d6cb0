"""What the product is measured with, against named peers in the same run."""

import os

# As trainings, tests and `make` have it: threads that wait for work take no processor time. Torch reads it when it is
# first imported, which is before a benchmark's own line could say it.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
