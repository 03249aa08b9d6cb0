"""Everything a ranking model's life needs that is not a pipeline, a component, a model or a monitor."""

import gc

# Python searches for garbage after every 700 objects: 0.35 s of processor time of a data step, 0.06 s of it while this
# package and what it needs are imported.
gc.set_threshold(20_000, 20, 20)
