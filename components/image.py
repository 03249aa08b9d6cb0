"""The container images that the steps run in on a cluster."""

import os

PIPELINE_IMAGE = os.environ.get("SHORTLIST_IMAGE", "shortlist/python-pipeline:0.1.0")
"""Image with this package installed; kfp.local ignores it and uses the running Python."""
