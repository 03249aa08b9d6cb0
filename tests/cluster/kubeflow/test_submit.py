"""A training on a cluster is started once by the real client, despite faults of the network and the server."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import kfp
import kube_rbac
import pytest
from kfp_server import Fault, KubeflowServer, access_review, running

from monitoring.windows.records import RetrainDecision
from shortlist.contracts import ShortlistError
from shortlist.kubeflow.client import KubeflowClient
from shortlist.kubeflow.cluster_compile import CompiledGraphs
from shortlist.kubeflow.kubeflow_requests import KubeflowError
from shortlist.kubeflow.training_runs import Submission, prepare_training, submit_run
from shortlist.spec.spec import Spec
from shortlist.storage.storage_config import StorageConfig

TOKEN = "t0ken-that-nobody-may-see"  # noqa: S105 - of the server in this file


@pytest.fixture(scope="module")
def spec(make_spec: Callable[..., Spec]) -> Spec:
    return make_spec()


@pytest.fixture(scope="module")
def submission(spec: Spec, tmp_path_factory: pytest.TempPathFactory) -> Submission:
    return prepare_training(spec, "", tmp_path_factory.mktemp("compiled"))


def client(server: KubeflowServer, **options: Any) -> KubeflowClient:
    return KubeflowClient(server.url, "team-a", **{"seconds": 20, "pause": 0.001, **options})


def test_it_uploads_the_version_and_starts_the_run(server: KubeflowServer, spec: Spec, submission: Submission) -> None:
    submitted = submit_run(submission, spec, client(server))
    assert submitted.new
    assert str(submitted).startswith(f"started run {submission.name} (")
    (pipeline,), (version,), (run,) = (server.stored[name] for name in ("pipelines", "pipeline_versions", "runs"))
    assert pipeline["display_name"] == "demo-training"
    assert version["display_name"] == f"demo-training-{submission.compiled.digest}"
    assert run["pipeline_version_reference"]["pipeline_version_id"] == version["pipeline_version_id"]
    assert run["service_account"] == "shortlist-pipeline"
    stores = StorageConfig.parse(run["runtime_config"]["parameters"]["stores"])
    assert stores == StorageConfig(
        cluster="default",
        objects="s3://models/shortlist",
        tracking_variable="MLFLOW_TRACKING_URI",
        database_variable="SHORTLIST_DATABASE",
    )


@pytest.mark.filterwarnings("ignore:This client only works with Kubeflow Pipeline:FutureWarning")
def test_kubeflows_own_client_lists_the_run_and_reruns_its_version(
    server: KubeflowServer, spec: Spec, submission: Submission
) -> None:
    submitted = submit_run(submission, spec, client(server))
    kubeflow = kfp.Client(host=server.url, namespace="team-a")
    (run,) = kubeflow.list_runs().runs
    (pipeline,) = kubeflow.list_pipelines().pipelines
    (version,) = kubeflow.list_pipeline_versions(pipeline.pipeline_id).pipeline_versions
    assert (run.run_id, run.display_name, pipeline.display_name) == (
        submitted.run_id, submission.name, "demo-training",
    )  # fmt: skip
    parameters = {**run.runtime_config.parameters, "skew_rows": 200.0}
    second_run = kubeflow.run_pipeline(
        run.experiment_id, "by hand", pipeline_id=pipeline.pipeline_id, version_id=version.pipeline_version_id,
        params={name: parameters[name] for name in run.runtime_config.parameters}, service_account=run.service_account,
    )  # fmt: skip
    listed_names = [listed_run.display_name for listed_run in kubeflow.list_runs().runs]
    assert (second_run.display_name, listed_names) == ("by hand", [submission.name, "by hand"])


def test_asked_twice_it_is_started_once(server: KubeflowServer, spec: Spec, submission: Submission) -> None:
    first = submit_run(submission, spec, client(server))
    server.stored["runs"][0]["state"] = "RUNNING"
    second = submit_run(submission, spec, client(server))
    assert not second.new
    assert second.run_id == first.run_id
    assert str(second) == f"already started: run {first.name} ({first.run_id}) is RUNNING: {first.page}."
    assert len(server.stored["runs"]) == len(server.stored["pipeline_versions"]) == 1


def test_a_failed_run_is_started_again_only_on_request(
    server: KubeflowServer, spec: Spec, submission: Submission
) -> None:
    submit_run(submission, spec, client(server))
    server.stored["runs"][0]["state"] = "FAILED"
    assert "is FAILED" in (message := str(submit_run(submission, spec, client(server))))
    assert message.endswith("Start it again with AGAIN=2.")
    second = prepare_training(spec, "", submission.compiled.folder.parent, attempt=2)
    assert second.name == f"{submission.name}-2"
    assert [submit_run(second, spec, client(server)).new for _ in range(2)] == [True, False]
    assert len(server.stored["pipeline_versions"]) == 1


def test_a_run_claims_the_key_that_its_name_says(spec: Spec, submission: Submission) -> None:
    key = submission.arguments["cause"]["key"]
    assert submission.name == f"demo-training-{key}"
    second = prepare_training(spec, "", submission.compiled.folder.parent, attempt=2)
    assert len(second.arguments["cause"]["key"]) == 16
    assert second.arguments["cause"]["key"] != key
    assert prepare_training(spec, "", submission.compiled.folder.parent).arguments["cause"]["key"] == key


def test_concurrent_submissions_start_one_run(server: KubeflowServer, spec: Spec, submission: Submission) -> None:
    clients = [client(server) for _ in range(2)]
    both_looked = threading.Barrier(2, timeout=20)
    thread_state = threading.local()
    handle = server.handle

    def handle_together(method: str, target: str, *other_arguments: Any) -> Any:
        if method == "POST" and target.endswith("/runs") and not getattr(thread_state, "yes", False):
            thread_state.yes = True
            both_looked.wait()
        return handle(method, target, *other_arguments)

    server.handle = handle_together  # type: ignore[method-assign]
    submitted_runs: list[Any] = []
    threads = [
        threading.Thread(target=lambda kubeflow=kubeflow: submitted_runs.append(submit_run(submission, spec, kubeflow)))
        for kubeflow in clients
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (run,) = server.stored["runs"]
    assert {submitted.run_id for submitted in submitted_runs} == {run["run_id"]}


def test_the_shipped_role_of_the_trigger_allows_exactly_the_calls_that_start_a_run(
    spec: Spec, submission: Submission
) -> None:
    def start_the_same_run_first(operation: str) -> None:
        if operation == "run_service_create_run":  # so the run of this client is deleted again
            experiment = kubeflow.stored["experiments"][0]["experiment_id"]
            kubeflow._add("runs", {"display_name": submission.name, "experiment_id": experiment, "state": "PENDING"})

    with running(reviews_access=True) as kubeflow:
        kubeflow.on_operation = start_the_same_run_first
        trigger = client(kubeflow, token="shortlist-trigger")  # noqa: S106 - an account's name
        assert not submit_run(submission, spec, trigger).new
        rules = kube_rbac.rules_of("shortlist-trigger", kube_rbac.NAMESPACE)
        allowed = {(resource, verb) for rule in rules for resource in rule["resources"] for verb in rule["verbs"]}
        assert allowed == {access_review(operation) for operation in kubeflow.requested} - {None}


def test_an_account_without_the_role_cannot_start_a_run(spec: Spec, submission: Submission) -> None:
    with running(reviews_access=True) as kubeflow:
        server_account = client(kubeflow, token="shortlist-server")  # noqa: S106 - an account's name
        with pytest.raises(KubeflowError, match=r"may not do this: User .* is not authorized.*resource experiments"):
            submit_run(submission, spec, server_account)
    assert kubeflow.changes == []


def test_other_data_or_another_declaration_is_another_run(
    submission: Submission, make_spec: Any, tmp_path: Path
) -> None:
    other_submission = prepare_training(make_spec(ttl_hours=1), "", tmp_path)
    assert other_submission.name != submission.name
    assert prepare_training(make_spec(), "", submission.compiled.folder.parent).name == submission.name


@pytest.mark.parametrize(
    "operation", ["healthz.*", ".*_list_experiments", ".*create_pipeline", "upload.*", ".*create_run"]
)
@pytest.mark.parametrize(
    "fault",
    [{"status": 500}, {"status": 503}, {"carried_out": True}, {"drop": True}, {"drop": True, "carried_out": True}],
)
def test_transient_failures_are_retried_without_duplicates(
    server: KubeflowServer, spec: Spec, submission: Submission, operation: str, fault: dict[str, Any]
) -> None:
    server.faults.append(Fault(operation, **fault))
    assert submit_run(submission, spec, client(server)).name == submission.name
    assert server.faults[0].times == 0
    assert [len(server.stored[kind]) for kind in ("experiments", "pipelines", "pipeline_versions", "runs")] == [
        1,
        1,
        1,
        1,
    ]


def test_a_concurrently_created_pipeline_is_reused_for_the_run(
    server: KubeflowServer, spec: Spec, submission: Submission
) -> None:
    def make_it_first(name: str) -> None:
        if name == "pipeline_service_create_pipeline" and not server.stored["pipelines"]:
            server._add("pipelines", {"name": "demo-training", "display_name": "demo-training"})

    server.on_operation = make_it_first  # so ours is answered 409
    assert submit_run(submission, spec, client(server)).new
    assert len(server.stored["pipelines"]) == 1


def test_a_server_that_keeps_failing_is_given_up(server: KubeflowServer, spec: Spec, submission: Submission) -> None:
    server.faults.append(Fault(".*create_run", status=500, message="cannot talk to Argo", times=99))
    with pytest.raises(KubeflowError, match=r"answers 500: cannot talk to Argo"):
        submit_run(submission, spec, client(server))
    assert not server.stored["runs"]


def test_an_unreachable_host_is_named(spec: Spec) -> None:
    with socket.socket() as bound_socket:
        bound_socket.bind(("127.0.0.1", 0))
        port = bound_socket.getsockname()[1]
    with pytest.raises(
        KubeflowError, match=rf"http://127\.0\.0\.1:{port}: no answer from Kubeflow Pipelines .*Is the address"
    ):
        KubeflowClient(f"http://127.0.0.1:{port}", "team-a", pause=0.001)


def test_the_default_namespace_is_given_up_as_fast(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(KubeflowError, match="no answer"):
        KubeflowClient("http://127.0.0.1:1", "kubeflow", pause=0.001)
    assert "Traceback" not in caplog.text


def test_a_login_page_is_not_taken_for_the_api(server: KubeflowServer, spec: Spec, submission: Submission) -> None:
    server.page = "<html><body>Log in</body></html>"
    with pytest.raises(KubeflowError, match=r"does not answer as Kubeflow Pipelines' API does; it may be a login page"):
        submit_run(submission, spec, client(server))


@pytest.mark.parametrize("host", ["ml-pipeline:8888", "ftp://host", "https://me:secret@host"])
def test_an_invalid_address_is_refused_without_its_password(host: str) -> None:
    with pytest.raises(KubeflowError, match=r"HOST: got .*, wanted http\(s\)://host") as raised:
        KubeflowClient(host, "team-a")
    assert "secret" not in str(raised.value)


def test_a_wrong_token_is_refused_and_printed_nowhere(
    spec: Spec, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("SHORTLIST_KFP_TOKEN", TOKEN)
    with (
        running(token=TOKEN[::-1]) as server,
        pytest.raises(KubeflowError, match="does not accept the token") as raised,
    ):
        client(server)  # the server repeats the token in its answer
    captured = capfd.readouterr()
    for text in (str(raised.value), repr(raised.value), caplog.text, captured.out, captured.err):
        assert TOKEN not in text
    assert raised.value.status == 401
    assert raised.value.__cause__ is None


def test_not_even_a_part_of_the_token_is_printed(spec: Spec, submission: Submission) -> None:
    with running(token=TOKEN) as server:
        server.faults.append(Fault(".*create_run", status=403, message="x" * 295 + TOKEN, times=9))
        with pytest.raises(KubeflowError) as raised:
            submit_run(submission, spec, client(server, token=TOKEN))
    assert TOKEN[:3] not in str(raised.value)


def test_a_missing_token_is_an_error_and_the_right_one_works(
    spec: Spec, submission: Submission, tmp_path: Path
) -> None:
    with running(token=TOKEN) as server:
        with pytest.raises(
            KubeflowError, match=r"answers 401: it wants a token\. Put a fresh one into SHORTLIST_KFP_TOKEN"
        ):
            client(server)
        assert submit_run(submission, spec, client(server, token=TOKEN)).new


def test_inside_a_cluster_the_pods_own_token_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    monkeypatch.setenv("KF_PIPELINES_SA_TOKEN_PATH", str(tmp_path / "token"))
    with running(token=TOKEN) as server:
        client(server)


@pytest.mark.parametrize(
    ("status", "message", "said"),
    [
        (403, "User is not authorized to create runs", r"answers 403: the token's owner may not do this"),
        (
            500,
            'pods "x" is forbidden: exceeded quota: gpus',
            r"a quota refuses it: .*Nothing was started\. Raise the quota",
        ),
        (429, "RESOURCE_EXHAUSTED: too many runs", r"a quota refuses it"),
    ],
)
def test_a_refused_call_is_not_repeated(
    server: KubeflowServer, spec: Spec, submission: Submission, status: int, message: str, said: str
) -> None:
    server.faults.append(Fault(".*create_run", status=status, message=message, times=99))
    with pytest.raises(KubeflowError, match=said):
        submit_run(submission, spec, client(server))
    assert server.requested.count("run_service_create_run") == 1
    assert not server.stored["runs"]


def test_a_server_that_does_not_answer_is_not_waited_for(
    server: KubeflowServer, spec: Spec, submission: Submission
) -> None:
    server.faults.append(Fault("run_service_create_run", seconds=1.0, carried_out=True, status=200, times=1))
    submitted = submit_run(submission, spec, client(server, seconds=0.2))
    assert len(server.stored["runs"]) == 1  # the answer was lost; the next look found the run
    assert not submitted.new


def test_in_multi_user_mode_calls_name_the_namespace(spec: Spec, submission: Submission) -> None:
    with running(multi_user=True) as server:
        assert submit_run(submission, spec, client(server)).new
        assert [object_["namespace"] for kind in ("experiments", "pipelines") for object_ in server.stored[kind]] == [
            "team-a"
        ] * 2


def test_a_listing_contains_the_objects_of_later_pages(
    server: KubeflowServer, spec: Spec, submission: Submission
) -> None:
    experiment = client(server).ensure_experiment(spec.runtime.cluster.kfp_experiment)
    for number in range(150):
        server._add("recurring_runs", {"experiment_id": experiment, "display_name": f"other-{number}"})
    assert len(client(server).recurring_runs(experiment)) == 150


def test_parameters_that_do_not_fit_the_graph_are_refused_by_the_server(
    server: KubeflowServer, spec: Spec, submission: Submission
) -> None:
    broken = Submission(submission.compiled, "training", {**submission.arguments, "spce": "x"}, "run")
    with pytest.raises(KubeflowError, match="answers 400: parameter spce is not of this pipeline"):
        submit_run(broken, spec, client(server))


def test_fields_that_the_api_does_not_have_are_refused_by_the_server(server: KubeflowServer) -> None:
    kubeflow = client(server)
    with pytest.raises(KubeflowError, match="unknown field 'no_catch_up' of V2beta1RecurringRun"):
        kubeflow.create_recurring_run(
            {"experiment_id": kubeflow.ensure_experiment("e"), "description": "x", "no_catch_up": True}
        )


def test_data_on_this_machine_is_refused(make_spec: Any, tmp_path: Path) -> None:
    kuairand = make_spec("kuairand", tasks={})
    with pytest.raises(ShortlistError, match=r"DATA: '/data/log' is on this machine, and no pod can read it; copy"):
        prepare_training(kuairand, "/data/log", tmp_path)
    with pytest.raises(ShortlistError, match=r"spec 'kuairand' reads files: name their location, e\.g\. DATA=s3://"):
        prepare_training(kuairand, "", tmp_path)


def test_data_that_only_the_run_may_read_are_never_answered_from_a_cache(make_spec: Any, tmp_path: Path) -> None:
    prepared = prepare_training(make_spec("kuairand", tasks={}), "s3://logs/kuairand/", tmp_path, read_later=True)
    assert prepared.graph == "retraining"
    assert prepared.arguments["log"] == {"location": "s3://logs/kuairand", "digest": ""}


def test_a_laptops_stores_are_refused(make_spec: Any, tmp_path: Path) -> None:
    spec = make_spec()
    laptop = spec.model_copy(update={"runtime": type(spec.runtime)()})
    with pytest.raises(ShortlistError, match=r"runtime: got online_store: sqlite, .*which pods do not share"):
        prepare_training(laptop, "", tmp_path)


def test_a_compiled_graph_that_kubeflow_could_not_read_is_refused(server: KubeflowServer, tmp_path: Path) -> None:
    kubeflow = client(server)
    (tmp_path / "graph.yaml").write_text("root: {dags: {}}")
    with pytest.raises(KubeflowError, match="answers 400: not a pipeline"):
        kubeflow.ensure_version(kubeflow.ensure_pipeline("demo"), "demo-1", tmp_path / "graph.yaml")


def test_the_compiled_files_are_written_once(submission: Submission, spec: Spec) -> None:
    assert CompiledGraphs.compile(spec, submission.compiled.folder.parent) == submission.compiled


def test_a_decision_is_carried_out_once_even_if_its_text_changes(
    server: KubeflowServer, make_spec: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process dies after it started a run and before it noted so; the next one has other code and other words."""
    moment = datetime(2026, 11, 21, tzinfo=UTC)
    decision = RetrainDecision(
        spec="demo", action="retrain", trigger="drift", key="0123456789abcdef", window=moment, until=moment,
        reasons=("price drifted",), made=moment,
    )  # fmt: skip
    spec = make_spec()
    first = submit_run(prepare_training(spec, "", tmp_path, decision=decision), spec, client(server))
    monkeypatch.setattr("shortlist.tracking.lineage.code_version", lambda: "f" * 16)
    reworded = decision.model_copy(update={"reasons": ("price and clicks drifted",), "made": datetime.now(UTC)})
    second = submit_run(prepare_training(spec, "", tmp_path, decision=reworded), spec, client(server))
    assert (first.new, second.new, second.run_id) == (True, False, first.run_id)
    assert first.name == "demo-retraining-0123456789abcdef"
    other_decision = decision.model_copy(update={"key": "f" * 16})
    assert submit_run(prepare_training(spec, "", tmp_path, decision=other_decision), spec, client(server)).new
