"""Titles of the steps of a run, on its page, in a graph and in a terminal."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

TITLES: Final = {
    "collect": "Collect served rows",
    "check_live_traffic": "Check live traffic",
    "find_champion": "Look up the champion",
    "find_served_features": "Look up the served features",
    "ingest": "Read the log",
    "validate": "Validate rows and days",
    "fit_features": "Count statistics",
    "recount_days": "Count corrected days again",
    "compare_features": "Compare with what is served",
    "build_table": "Build the feature table",
    "materialize_features": "Feast: store, read back, compare",
    "publish_features": "Feast: store, read back, publish",
    "refresh_releases": "Refresh the candidates",
    "build_retrieval": "Fit the sources of candidates",
    "build_release": "Assemble the release",
    "train": "Train",
    "validate_export": "Validate on a real Triton:",
    "train_ensembles": "Train ensembles",
    "score_champion": "Score the champion",
    "evaluate_slates": "Evaluate slates:",
    "evaluate_gates": "Gates",
    "build_reference_profile": "Build the reference profile",
    "register": "Register in MLflow",
    "report": "Write the page",
    "roll_out": "Roll out",
}
"""Titles of the steps, in the order of reports; another step is shown by its name, after these."""
_OTHER_TITLES: Final = {
    "claim_moment": "Claim the scheduled training",
    "claim_training": "Claim the submitted training",
    "find_collected": "Look up the collected rows",
    "record_gate_failures": "Record why nothing is blessed",
    "finalize_run": "Finish the run",
    "store_sections": "Store the sections of the spec",
    "plan_trials": "Plan the trials",
    "run_trials": "Run a batch of trials",
    "choose_settings": "Choose the best settings",
}
"""Titles of steps that only graphs show."""
PER_MODEL: Final = ("train", "validate_export", "evaluate_slates")
"""Steps that run once for every declared model, as `<step>_<model>`; those after the first for candidates alone."""


def _default_title(step: str) -> str:
    return step.replace("_", " ").capitalize()


def find_step(name: str) -> str:
    """Return the step of a step name, without the model.

    >>> find_step("train_trees"), find_step("score_champion")
    ('train', 'score_champion')
    """
    return next((step for step in PER_MODEL if name.startswith(f"{step}_")), name)


def step_title(name: str) -> str:
    """Return the title of a step on a page.

    >>> step_title("train_trees"), step_title("evaluate_slates_trees")
    ('Train trees', 'Evaluate slates: trees')
    """
    step = find_step(name)
    title = TITLES.get(step, _default_title(step))
    return f"{title} {name.removeprefix(f'{step}_')}" if step != name else title


def graph_title(step: str) -> str:
    """Return the title of a step in a graph.

    >>> graph_title("validate_export"), graph_title("finalize_run")
    ('Validate on a real Triton', 'Finish the run')
    """
    return {**TITLES, **_OTHER_TITLES}.get(step, _default_title(step)).removesuffix(":")


def sort_steps(names: Collection[str]) -> list[str]:
    """Return the steps that reports show, in their order; steps of several models, and those without a title, as given.

    >>> sort_steps(["count_words", "evaluate_gates", "train_b", "train_a", "finalize_run"])
    ['train_b', 'train_a', 'evaluate_gates', 'count_words']
    """
    places = {step: place for place, step in enumerate(TITLES)}
    shown = [name for name in names if name not in _OTHER_TITLES]
    return sorted(shown, key=lambda name: places.get(find_step(name), len(places)))


def list_graph_steps(declared: Collection[str], roles: Mapping[str, str]) -> list[str]:
    """Return the steps of a graph, in the order of reports; steps of models in the models' order.

    Args:
        declared: Steps of the compiled graph.
        roles: Role of every declared model by name, candidate or baseline; baselines are trained and no more.

    >>> roles = {"trees": "candidate", "popularity": "baseline"}
    >>> list_graph_steps(["evaluate_gates", "validate_export", "train"], roles)
    ['train_trees', 'train_popularity', 'validate_export_trees', 'evaluate_gates']
    """
    of_models = [
        f"{step}_{model}"
        for step in PER_MODEL if step in declared
        for model, role in roles.items() if step == PER_MODEL[0] or role == "candidate"
    ]  # fmt: skip
    return sort_steps([*(name for name in declared if name not in PER_MODEL), *of_models])
