"""What is asked of a Kubeflow Pipelines server: each thing is looked up by its name, and made when it is not there."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from shortlist.kubeflow.kubeflow_requests import KubeflowRequests, checked_host, token_of_environment

_NO_DEFAULT: Final = "-"
_PAGE: Final = 100


class Kubeflow:
    """A server, and the namespace in it.

    Args:
        host: `http(s)://host[:port][/prefix]` of the Kubeflow Pipelines API.
        namespace: Of the runs, where the server keeps users apart.
        token: Bearer token; it is in no message. None: what the environment says.
        seconds: Longest wait for one answer.
        pause: Seconds before the first repeated question; it doubles.

    Raises:
        KubeflowError: There is no such host, or it refuses.
    """

    def __init__(
        self, host: str, namespace: str, token: str | None = None, *, seconds: float = 60, pause: float = 1
    ) -> None:
        from kfp import Client

        self.host = checked_host(host)
        token = token_of_environment() if token is None else token
        self._calls = KubeflowRequests(self.host, token, seconds, pause)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # it says that it needs a server of version 2
            # Each question names its namespace; without one here the client would ask for its own, with no time limit.
            self._client = Client(host=self.host, namespace=_NO_DEFAULT, existing_token=token or None)
        health = self._calls.ask(self._client.healthzs.healthz_service_get_healthz)
        self._namespace = {"namespace": namespace} if health.multi_user else {}

    def find_experiment(self, name: str) -> str | None:
        """Return the id of an experiment; None when there is none."""
        listing = self._client.experiments.experiment_service_list_experiments
        found = self._named(listing, "experiments", name, **self._namespace)
        return None if found is None else str(found.experiment_id)

    def experiment(self, name: str) -> str:
        """Return the id of an experiment, made when missing."""
        create = self._client.experiments.experiment_service_create_experiment
        body = {"display_name": name, **self._namespace}
        found, _ = self._calls.get_or_create(
            lambda: self.find_experiment(name), lambda: self._calls.ask(create, body, tries=1).experiment_id
        )
        return str(found)

    def pipeline(self, name: str) -> str:
        """Return the id of a pipeline, made when missing."""
        api = self._client.pipelines
        body = {"name": name, "display_name": name, **self._namespace}
        found, _ = self._calls.get_or_create(
            lambda: self._named(api.pipeline_service_list_pipelines, "pipelines", name, **self._namespace),
            lambda: self._calls.ask(api.pipeline_service_create_pipeline, body, tries=1),
        )
        return str(found.pipeline_id)

    def version(self, pipeline_id: str, name: str, file: Path) -> tuple[str, bool]:
        """Return the id of a pipeline's version, uploaded when missing, and whether it was."""
        api = self._client.pipelines
        upload = self._client.pipeline_uploads.upload_pipeline_version
        found, made = self._calls.get_or_create(
            lambda: self._named(
                api.pipeline_service_list_pipeline_versions, "pipeline_versions", name, pipeline_id=pipeline_id
            ),
            lambda: self._calls.ask(upload, str(file), name=name, display_name=name, pipelineid=pipeline_id, tries=1),
        )
        return str(found.pipeline_version_id), made

    def run(self, experiment_id: str, name: str) -> Any:
        """Return the oldest run of a name in an experiment; None when there is none."""
        return min(self._runs(experiment_id, name), key=_age, default=None)

    def start(self, run: dict[str, Any]) -> tuple[Any, bool]:
        """Return the run of a name, started when there is none, and whether it was; two who ask at once start one.

        Args:
            run: Fields of Kubeflow's `V2beta1Run`; `display_name` and `experiment_id` tell it from others.
        """
        experiment, name, api = run["experiment_id"], run["display_name"], self._client.runs
        found, made = self._calls.get_or_create(
            lambda: self.run(experiment, name), lambda: self._calls.ask(api.run_service_create_run, run, tries=1)
        )
        if not made:
            return found, False
        same = sorted(self._runs(experiment, name), key=_age) or [found]
        for double in same[1:]:  # started by somebody else at the same moment; both sides keep the same one
            self._calls.gone(self._client.runs.run_service_delete_run, double.run_id)
        return same[0], same[0].run_id == found.run_id

    def in_progress(self, experiment_id: str) -> set[str]:
        """Return the ids of the recurring runs that have a run in progress."""
        answer = self._calls.ask(
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
        return sorted(self._calls.all(api, "recurring_runs", experiment_id=experiment_id), key=_age)

    def recur(self, recurring_run: dict[str, Any]) -> Any:
        """Make and return a recurring run; its `description` tells it from others, so that it is made once.

        Args:
            recurring_run: Fields of Kubeflow's `V2beta1RecurringRun`.
        """
        experiment, told = recurring_run["experiment_id"], recurring_run["description"]
        return self._calls.get_or_create(
            lambda: next((one for one in self.recurring_runs(experiment) if one.description == told), None),
            lambda: self._calls.ask(
                self._client.recurring_runs.recurring_run_service_create_recurring_run, recurring_run, tries=1
            ),
        )[0]

    def enable(self, recurring_run_id: str) -> None:
        """Let a recurring run start runs."""
        self._calls.ask(self._client.recurring_runs.recurring_run_service_enable_recurring_run, recurring_run_id)

    def disable(self, recurring_run_id: str) -> None:
        """Let a recurring run start no more runs; those in progress go on."""
        self._calls.ask(self._client.recurring_runs.recurring_run_service_disable_recurring_run, recurring_run_id)

    def delete(self, recurring_run_id: str) -> None:
        """Delete a recurring run; that it is gone already is fine."""
        self._calls.gone(self._client.recurring_runs.recurring_run_service_delete_recurring_run, recurring_run_id)

    def page_of(self, run_id: str) -> str:
        """Return the address of a run's page."""
        return f"{self.host}/#/runs/details/{run_id}"

    def _runs(self, experiment_id: str, name: str) -> Iterator[Any]:
        listing = self._client.runs.run_service_list_runs
        return self._calls.all(listing, "runs", filter=_called(name), experiment_id=experiment_id)

    def _named(self, listing: Callable[..., Any], field: str, name: str, **where: str) -> Any:
        return next(self._calls.all(listing, field, filter=_called(name), **where), None)


def _called(name: str) -> str:
    return json.dumps({"predicates": [{"operation": "EQUALS", "key": "display_name", "stringValue": name}]})


def _age(one: Any) -> tuple[str, str]:
    return str(one.created_at), str(getattr(one, "run_id", ""))
