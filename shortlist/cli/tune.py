"""The command that searches for better settings: `shortlist tune`."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shortlist.cli.options import RunsOption, SetOption, SpecArgument, find_spec
from shortlist.contracts import Files, ShortlistError, did_you_mean

if TYPE_CHECKING:
    from shortlist.spec.spec import Spec
    from shortlist.training.tuning.search import Trial

commands = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@commands.command()
def tune(
    spec: SpecArgument,
    model: Annotated[str | None, typer.Option(help="Name of the model; by default every candidate in turn.")] = None,
    minutes: Annotated[float | None, typer.Option(min=0.1, help="Longest time per model.")] = None,
    trials: Annotated[
        int | None, typer.Option(min=1, help="Most trials per model, earlier ones of the study included.")
    ] = None,
    runs: RunsOption = Path("runs"),
    change: SetOption = None,
) -> None:
    """Search for better settings of a spec's models, on the feature table of the last run; change nothing."""
    from shortlist.ranking.registry import require_packages
    from shortlist.runs.runs_folder import open_runs_folder
    from shortlist.spec.load import load_spec
    from shortlist.storage.artefacts import write_json
    from shortlist.tracking.run_context import RunContext
    from shortlist.training.tuning.outcome import write_outcome
    from shortlist.training.tuning.search import SearchSettings, search
    from shortlist.training.tuning.tracked import TrackedSearch

    loaded = load_spec(find_spec(spec, runs), change or ())
    names = tuned_models(loaded, model)
    require_packages({name: loaded.models[name].kind for name in names})
    state = open_runs_folder(runs, loaded.runtime)
    table = newest_matching_table(loaded, runs, spec)
    tracker = RunContext(name=loaded.name, stores=state.storage_parameter(loaded.runtime)).tracker
    outcome_by_model = {}
    for name in names:
        settings = SearchSettings.from_spec(loaded.search, name, loaded.models[name], loaded.runtime, table)
        if minutes is not None or trials is not None:
            settings = settings._replace(minutes=minutes, trials=trials)
        tracked = TrackedSearch(tracker, name, settings.section, settings.key)
        folder = state.root / "tune" / loaded.name / name

        def report(trial: Trial, tracked: TrackedSearch = tracked) -> None:
            tracked.log(trial)
            typer.echo(_trial_line(trial))

        result = search(settings, folder, report)
        tracked.close(result)
        for line in write_outcome(result, spec, folder):
            typer.echo(line)
        outcome_by_model[name] = result
    write_json(state.root / "tune" / loaded.name / "latest.json", {
        name: {"metric": result.metric, "trials": len(result.trials),
               "shipped": result.shipped.model_dump() if result.shipped else None,
               "best": result.best.model_dump() if result.best else None}
        for name, result in outcome_by_model.items()
    })  # fmt: skip
    if any(result.best is None for result in outcome_by_model.values()):
        raise ShortlistError("tune: no trial of a model was measured; the lines above say why")


def tuned_models(spec: Spec, model: str | None) -> list[str]:
    """Return the names of the models to tune.

    Args:
        spec: The spec.
        model: Name of the only model; None: every candidate with a search space.

    Raises:
        ShortlistError: There is no such model, or none has a search space.
    """
    from shortlist.training.tuning.space import tunable_models

    if model is not None and model not in spec.models:
        raise ShortlistError(f"--model: no model is called '{model}'{did_you_mean(model, spec.models)}")
    if model is not None:
        return [model]
    able = [name for name in tunable_models(spec) if spec.models[name].role == "candidate"]
    if not able:
        raise ShortlistError(f"spec '{spec.name}': no candidate has a search space; declare one in tune.models")
    return able


def newest_matching_table(spec: Spec, runs: Path, named: str) -> Path:
    """Return the folder of the newest feature table of a run with the same sections `data` and `features`.

    Args:
        spec: The spec.
        runs: Folder of runs.
        named: The spec as the user named it.

    Raises:
        ShortlistError: There is none.
    """
    declared = spec.data.model_dump(mode="json"), spec.features.model_dump(mode="json")
    fitted = [
        path for path in (runs / "cache").rglob(Files.FEATURES)
        if Files.PREPROCESSING not in path.parts and _declared(path) == declared
    ]  # fmt: skip
    # The artefacts of one run's steps are in sibling folders: artefacts/<run>/<step>/<artefact>.
    tables = [table for path in fitted for table in path.parents[2].rglob(Files.TABLE)]
    if not tables:
        raise ShortlistError(
            f"{runs}: no run of '{named}' wrote a feature table here with the data and features that it declares now."
            f" Run it first: make run SPEC={named} RUNS={shlex.quote(str(runs))}"
        )
    return max(tables, key=lambda path: path.stat().st_mtime).parent


def _declared(path: Path) -> tuple[object, object]:
    saved = json.loads(path.read_text("utf-8"))
    return saved["data"], saved["features"]


def _trial_line(trial: Trial) -> str:
    head = f"trial {trial.number:>3}  {trial.seconds:>7.1f} s  "
    if trial.value is None:
        return f"{head}{trial.state}{': ' + trial.reason if trial.reason else ''}"
    changes = "as shipped" if trial.shipped else ", ".join(f"{key}={value}" for key, value in trial.changes.items())
    return f"{head}{'  '.join(trial.figures)}  {changes}"
