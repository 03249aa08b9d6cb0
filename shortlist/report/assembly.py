"""Assembly of the page and the summary of a run from the artefacts of its steps."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from shortlist.contracts import Files
from shortlist.data.log_notices import ALLOWED_LEAKS
from shortlist.evaluation.blessing import read_blessing
from shortlist.evaluation.comparison import ModelComparison, TrainedFiles, compare_models
from shortlist.evaluation.metrics.embeddings import read_embedding_numbers
from shortlist.evaluation.metrics.measure import measure
from shortlist.evaluation.verdict import GateVerdict
from shortlist.report.page import PageStep, RunPage
from shortlist.report.page_facts import split_rows
from shortlist.report.report import choose_shown_slates, write_report
from shortlist.report.summary import (
    BlessedVersion,
    RowCounts,
    StepNumbers,
    Summary,
    combine_engines,
    gate_lines,
    label_numbers,
    model_numbers,
    stage_lines,
    write_summary,
)
from shortlist.report.titles import sort_steps, step_title
from shortlist.report.value_lines import run_value
from shortlist.spec.gates import Gates
from shortlist.spec.runtime import Runtime
from shortlist.storage.artefacts import read_json, write_json
from shortlist.storage.tables import DayTable
from shortlist.tracking.artefact_metadata import PipelineArtefact, read_metadata


def page_steps(records: Iterable[Mapping[str, Any]], started: str) -> tuple[PageStep, ...]:
    """Return the steps of a run; those that started before the run came from the cache.

    Args:
        records: Step records (see `shortlist.tracking.steps`); empty ones are left out.
        started: ISO 8601 moment at which the run began.
    """
    record_by_step = {str(record["name"]): record for record in records if record}
    names = sort_steps(record_by_step)
    return tuple(
        PageStep(
            name=name,
            title=step_title(name),
            seconds=record_by_step[name]["seconds"],
            cached=datetime.fromisoformat(record_by_step[name]["started"]) < datetime.fromisoformat(started),
            peak_mib=record_by_step[name]["peak_mib"],
            rows=record_by_step[name].get("rows"),
            rows_per_s=record_by_step[name].get("rows_per_s"),
            engine=record_by_step[name].get("engine"),
        )
        for name in names
    )


def complete_page(
    page: RunPage, models: Mapping[str, Path], baselines: Mapping[str, Path], limits: Gates, seed: int
) -> RunPage:
    """Return the page of a finished run with its models.

    Args:
        page: The page without models.
        models: Model folders by name.
        baselines: Scores folders of the baselines by name; the baseline of the gates is in the verdict.
        limits: Name of the baseline of the gates; confidence level and bootstrap rounds of the others' intervals.
        seed: Seed of the bootstrap.
    """
    measures = tuple(
        measure(name, "baseline", scores, limits, seed).measures
        for name, scores in baselines.items()
        if name != limits.baseline
    )
    seconds = (datetime.now(UTC) - datetime.fromisoformat(page.started)).total_seconds()
    return page.model_copy(update={"measures": measures, "models": dict(models), "seconds": seconds})


def build_summary(page: RunPage) -> Summary:
    """Return the machine-readable summary of a run, finished or stopped."""
    verdict = GateVerdict.read(page.verdict) if page.verdict else None
    measures = (*(verdict.models if verdict else ()), *page.measures)
    records = {name: read_json(folder / Files.MODEL) for name, folder in page.models.items()}
    kinds = {name: record["kind"] for name, record in records.items()}
    if verdict and verdict.champion:
        kinds["champion"] = verdict.champion.kind
    embeddings = read_embedding_numbers(records)
    slates = choose_shown_slates(verdict, read_blessing(page.verdict / Files.BLESSING)) if page.verdict else None
    return Summary(
        spec=page.spec,
        rows=_row_counts(page),
        best_possible=verdict.best_possible if verdict else None,
        models={
            model_measures.model: model_numbers(
                model_measures, kinds.get(model_measures.model, ""), records.get(model_measures.model)
            )
            for model_measures in measures
        },
        metric=verdict.metric if verdict else None,
        notice=page.notice,
        gates=gate_lines(verdict.reports) if verdict else (),
        blessed=_blessed_version(page),
        reasons=read_blessing(page.verdict / Files.BLESSING).reasons if page.verdict else {},
        steps={
            step.name: StepNumbers(
                seconds=step.seconds or 0.0, cached=step.cached, peak_mib=step.peak_mib, engine=step.engine
            )
            for step in page.steps
        },
        failed=page.failure,
        engine=combine_engines(step.engine for step in page.steps),
        embeddings=next(iter(embeddings.values()), None),
        embeddings_by_model=embeddings,
        labels=label_numbers(measures),
        stages=stage_lines(verdict.retrieval, slates) if verdict else (),
        value=run_value(verdict, slates) if verdict else None,
    )


def _row_counts(page: RunPage) -> RowCounts:
    log = DayTable.open(page.valid_log, Files.LOG) if page.valid_log else None
    notes = log.notes if log is not None else {}
    split = split_rows(DayTable.open(page.table, Files.TABLE)) if page.table else {}
    return RowCounts(
        raw=notes.get("raw_rows"),
        valid=notes.get("valid_rows"),
        quarantined=notes.get("quarantined_rows"),
        train=split.get("train"),
        validation=split.get("validation"),
        test=split.get("test"),
        collected=notes.get("collected_rows"),
        newest_day=str(log.days[-1].day) if log is not None and log.days else None,
    )


def _blessed_version(page: RunPage) -> BlessedVersion | None:
    blessed = read_blessing(page.verdict / Files.BLESSING).blessed if page.verdict else None
    return BlessedVersion(model=blessed.model, version=page.version) if blessed else None


def step_records(steps: Iterable[str], carriers: Iterable[PipelineArtefact]) -> list[Mapping[str, Any]]:
    """Return the records of all steps that left one.

    Args:
        steps: Records, as JSON, of steps without an artefact; empty texts are left out.
        carriers: Artefacts that may carry the record of the step that wrote them.
    """
    records = [
        *(json.loads(record) for record in steps if record),
        *(read_metadata(carrier, "step", None) for carrier in carriers),
    ]
    return [record for record in records if record]


def run_notice(valid_log: Path, compared: ModelComparison) -> str:
    """Return what stands above the models of a run: leaks that its spec allows, and what beats no baseline.

    Args:
        valid_log: Folder of the valid log.
        compared: Comparison of the models.
    """
    leaks = DayTable.open(valid_log, Files.LOG).notes.get(ALLOWED_LEAKS, ())
    return " ".join(filter(None, (*leaks, compared.notice)))


def write_run(
    run: Mapping[str, str],
    lineage: Mapping[str, str],
    steps: Iterable[str],
    page_artefacts: Mapping[str, PipelineArtefact],
    step_artefacts: Iterable[PipelineArtefact],
    models: Mapping[str, PipelineArtefact],
    score_artefacts: Mapping[str, tuple[PipelineArtefact, PipelineArtefact]],
    out: tuple[str, str, str],
) -> None:
    """Write the page, the summary and the comparison of models of a finished run.

    Args:
        run: spec, gates and runtime (as JSON), started, version.
        lineage: Digests and versions of the run's inputs by name.
        steps: Records, as JSON, of steps without an artefact.
        page_artefacts: valid_log, quarantine, table and verdict.
        step_artefacts: Further artefacts that carry a step's record.
        models: Model folders.
        score_artefacts: Scores and export validation of every model; that of a baseline is empty.
        out: Paths of the page, of the summary and of the comparison.
    """
    carriers = [*page_artefacts.values(), *step_artefacts, *models.values()]
    records = step_records(steps, carriers)
    limits, seed = Gates.model_validate_json(run["gates"]), Runtime.model_validate_json(run["runtime"]).seed
    files = {
        name: TrainedFiles(
            read_metadata(model, "role"), Path(model.path), *(Path(artefact.path) for artefact in score_artefacts[name])
        )
        for name, model in models.items()
    }
    mlflow_runs = {name: read_metadata(model, "mlflow_run") for name, model in models.items()}
    beginnings = {f"beginning of {name}": read_metadata(model, "begun", None) for name, model in models.items()}
    blessed = read_blessing(Path(page_artefacts["verdict"].path) / Files.BLESSING).blessed
    compared = compare_models(run["spec"], files, limits, seed, blessed.model if blessed else "")
    page = complete_page(
        RunPage(
            spec=run["spec"],
            started=run["started"],
            steps=page_steps(records, run["started"]),
            version=run["version"],
            notice=run_notice(Path(page_artefacts["valid_log"].path), compared),
            mlflow_runs={name: mlflow_run for name, mlflow_run in mlflow_runs.items() if mlflow_run},
            lineage={name: origin for name, origin in {**lineage, **beginnings}.items() if origin},
            **{name: Path(artefact.path) for name, artefact in page_artefacts.items()},
        ),
        {name: Path(model.path) for name, model in models.items()},
        {name: model_files.scores for name, model_files in files.items() if model_files.role == "baseline"},
        limits,
        seed,
    )
    write_report(page, Path(out[0]))
    write_summary(Path(out[1]), build_summary(page))
    write_json(Path(out[2]), compared.model_dump(mode="json"))
