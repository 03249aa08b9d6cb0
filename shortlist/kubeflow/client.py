"""Client of a Kubeflow Pipelines server, which looks objects up by name and creates those that are missing."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from shortlist.kubeflow.kubeflow_requests import KubeflowRequests, check_host, read_token

_NO_DEFAULT: Final = "-"
_PAGE: Final = 100


class KubeflowClient:
    """Client of one server and one namespace.

    Args:
        host: `http(s)://host[:port][/prefix]` of the Kubeflow Pipelines API.
        namespace: Namespace of the runs; used where the server is in multi-user mode.
        token: Bearer token; it appears in no message. None: the token of the environment.
        seconds: Longest wait for one answer.
        pause: Seconds before the first retry; they double.

    Raises:
        KubeflowError: The server cannot be reached, or refuses.
    """

    def __init__(
        self, host: str, namespace: str, token: str | None = None, *, seconds: float = 60, pause: float = 1
    ) -> None:
        from kfp import Client

        self.host = check_host(host)
        token = read_token() if token is None else token
        self._calls = KubeflowRequests(self.host, token, seconds, pause)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # "This client only works with KFP 2"
            # Each call names its namespace; without one here kfp's client would look for it, with no time limit.
            self._client = Client(host=self.host, namespace=_NO_DEFAULT, existing_token=token or None)
        health = self._calls.call(self._client.healthzs.healthz_service_get_healthz)
        self._namespace = {"namespace": namespace} if health.multi_user else {}

    def find_experiment(self, name: str) -> str | None:
        """Return the id of an experiment; None when there is none."""
        listing = self._client.experiments.experiment_service_list_experiments
        experiment = self._find_by_name(listing, "experiments", name, **self._namespace)
        return None if experiment is None else str(experiment.experiment_id)

    def ensure_experiment(self, name: str) -> str:
        """Return the id of an experiment, which is created when missing."""
        create = self._client.experiments.experiment_service_create_experiment
        body = {"display_name": name, **self._namespace}
        experiment_id, _ = self._calls.get_or_create(
            lambda: self.find_experiment(name), lambda: self._calls.call(create, body, tries=1).experiment_id
        )
        return str(experiment_id)

    def ensure_pipeline(self, name: str) -> str:
        """Return the id of a pipeline, which is created when missing."""
        api = self._client.pipelines
        body = {"name": name, "display_name": name, **self._namespace}
        pipeline, _ = self._calls.get_or_create(
            lambda: self._find_by_name(api.pipeline_service_list_pipelines, "pipelines", name, **self._namespace),
            lambda: self._calls.call(api.pipeline_service_create_pipeline, body, tries=1),
        )
        return str(pipeline.pipeline_id)

    def ensure_version(self, pipeline_id: str, name: str, file: Path) -> tuple[str, bool]:
        """Return the id of a pipeline's version, which is uploaded when missing, and whether it was uploaded."""
        api = self._client.pipelines
        upload = self._client.pipeline_uploads.upload_pipeline_version
        pipeline_version, uploaded = self._calls.get_or_create(
            lambda: self._find_by_name(
                api.pipeline_service_list_pipeline_versions, "pipeline_versions", name, pipeline_id=pipeline_id
            ),
            lambda: self._calls.call(upload, str(file), name=name, display_name=name, pipelineid=pipeline_id, tries=1),
        )
        return str(pipeline_version.pipeline_version_id), uploaded

    def find_run(self, experiment_id: str, name: str) -> Any:
        """Return the oldest run with a name in an experiment; None when there is none."""
        return min(self._list_runs(experiment_id, name), key=_creation_order, default=None)

    def start_run(self, run: dict[str, Any]) -> tuple[Any, bool]:
        """Return the run with a name, started when missing, and whether it was; concurrent calls start one run.

        Args:
            run: Fields of Kubeflow's `kfp_server_api.V2beta1Run`; `display_name` and `experiment_id` identify it.
        """
        experiment, name, api = run["experiment_id"], run["display_name"], self._client.runs
        run_of_name, created = self._calls.get_or_create(
            lambda: self.find_run(experiment, name), lambda: self._calls.call(api.run_service_create_run, run, tries=1)
        )
        if not created:
            return run_of_name, False
        runs_of_name = sorted(self._list_runs(experiment, name), key=_creation_order) or [run_of_name]
        for duplicate in runs_of_name[1:]:  # started by another client at the runs_of_name moment; both keep the oldest
            self._calls.delete_if_exists(self._client.runs.run_service_delete_run, duplicate.run_id)
        return runs_of_name[0], runs_of_name[0].run_id == run_of_name.run_id

    def recurring_runs_in_progress(self, experiment_id: str) -> set[str]:
        """Return the ids of the recurring runs that have a run in progress."""
        answer = self._calls.call(
            self._client.runs.run_service_list_runs,
            experiment_id=experiment_id,
            page_size=_PAGE,
            sort_by="created_at desc",
        )
        ended = ("SUCCEEDED", "SKIPPED", "FAILED", "CANCELED")
        return {str(run.recurring_run_id) for run in answer.runs or () if run.state not in ended}

    def recurring_runs(self, experiment_id: str) -> list[Any]:
        """Return an experiment's recurring runs, the oldest first."""
        api = self._client.recurring_runs.recurring_run_service_list_recurring_runs
        return sorted(self._calls.list_all(api, "recurring_runs", experiment_id=experiment_id), key=_creation_order)

    def create_recurring_run(self, recurring_run: dict[str, Any]) -> Any:
        """Return the recurring run with a `description`, which is created when missing.

        Args:
            recurring_run: Fields of Kubeflow's `kfp_server_api.V2beta1RecurringRun`.
        """
        experiment, description = recurring_run["experiment_id"], recurring_run["description"]
        return self._calls.get_or_create(
            lambda: next(
                (existing for existing in self.recurring_runs(experiment) if existing.description == description), None
            ),
            lambda: self._calls.call(
                self._client.recurring_runs.recurring_run_service_create_recurring_run, recurring_run, tries=1
            ),
        )[0]

    def enable(self, recurring_run_id: str) -> None:
        """Enable a recurring run."""
        self._calls.call(self._client.recurring_runs.recurring_run_service_enable_recurring_run, recurring_run_id)

    def disable(self, recurring_run_id: str) -> None:
        """Disable a recurring run; runs in progress continue."""
        self._calls.call(self._client.recurring_runs.recurring_run_service_disable_recurring_run, recurring_run_id)

    def delete(self, recurring_run_id: str) -> None:
        """Delete a recurring run, if it exists."""
        self._calls.delete_if_exists(
            self._client.recurring_runs.recurring_run_service_delete_recurring_run, recurring_run_id
        )

    def run_url(self, run_id: str) -> str:
        """Return the URL of a run's page."""
        return f"{self.host}/#/runs/details/{run_id}"

    def _list_runs(self, experiment_id: str, name: str) -> Iterator[Any]:
        listing = self._client.runs.run_service_list_runs
        return self._calls.list_all(listing, "runs", filter=_display_name_filter(name), experiment_id=experiment_id)

    def _find_by_name(self, listing: Callable[..., Any], field: str, name: str, **filters: str) -> Any:
        return next(self._calls.list_all(listing, field, filter=_display_name_filter(name), **filters), None)


def _display_name_filter(name: str) -> str:
    return json.dumps({"predicates": [{"operation": "EQUALS", "key": "display_name", "stringValue": name}]})


def _creation_order(run: Any) -> tuple[str, str]:
    return str(run.created_at), str(getattr(run, "run_id", ""))
