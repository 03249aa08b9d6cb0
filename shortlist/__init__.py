"""Everything a ranking model's life needs that is not a pipeline, a component, a model or a monitor."""
