"""What all ranking models share: kind, table, training, record and files; a project's `models/` implements it."""

import os

# OpenMP threads (torch, XGBoost) otherwise spin at every barrier. Where cores are shared, with the loader's own thread
# to begin with, that costs far more than sleeping. Read once, when the first of these libraries is loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
