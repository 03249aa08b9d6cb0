"""One version's server: `python -m shortlist.serving.server.server SETTINGS.json`."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import grpc
import uvicorn
import uvloop
from pydantic import ValidationError

from shortlist.contracts import Files, ShortlistError
from shortlist.features.declared.plan import Plan
from shortlist.features.rows.preprocessing import Preprocessing
from shortlist.serving.export.signature import FOLDER, Signature
from shortlist.serving.log.log_writer import LogWriter
from shortlist.serving.log.logs import prediction_schema
from shortlist.serving.log.serving_log import stream_folder
from shortlist.serving.server.features.snapshot_refresher import SnapshotRefresher
from shortlist.serving.server.features.tensor_assembler import TensorAssembler
from shortlist.serving.server.features.user_features import UserFeatureStore
from shortlist.serving.server.inference.event_counts import EventCounts
from shortlist.serving.server.inference.event_receiver import EventReceiver
from shortlist.serving.server.inference.service import Service
from shortlist.serving.server.prediction_log.logged_columns import to_arrow_column
from shortlist.serving.server.protocols.grpc_app import GRPCApp
from shortlist.serving.server.protocols.http_app import http_app
from shortlist.serving.server.protocols.http_inference import connection_class
from shortlist.serving.server.recommendations.recommendation_service import RecommendationService
from shortlist.serving.server.recommendations.release_refresher import ReleaseRefresher
from shortlist.serving.server.recommendations.user_items import UserItems
from shortlist.serving.server.runtime.health_server import HealthServer
from shortlist.serving.server.runtime.metrics import Metrics, age_seconds
from shortlist.serving.server.runtime.settings import ServerSettings
from shortlist.serving.server.scoring.predictor import Predictor
from shortlist.slates.release import open_release
from shortlist.spec.serving import Limits
from shortlist.spec.text.durations import parse_duration
from shortlist.storage.artefacts import read_json

_GRACE_SECONDS: Final = 30
_IDLE_SECONDS: Final = 7_200
"""Longer than the idle timeout of any client or gateway, so that the client closes first and no request is lost."""
_ACCEPTED_PER_ROUND: Final = 16
"""Connections accepted per round of the event loop."""
_SWITCH_SECONDS: Final = 0.0005
"""Interpreter switch interval. With Python's default of 5 ms, half of a slate's time, a request waits too long for
threads that scan vectors, read logs or load views."""
_log = logging.getLogger(__name__)


def main(arguments: list[str]) -> int:
    """Serve until SIGTERM or SIGINT; return the exit code."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    try:
        if len(arguments) != 1:
            raise ShortlistError(f"got {len(arguments)} arguments; wanted one, the settings file")
        settings = read_settings(Path(arguments[0]))
        sys.setswitchinterval(_SWITCH_SECONDS)
        uvloop.run(serve(settings))
    except ShortlistError as error:
        _log.error("%s", error)
        return 1
    return 0


def read_settings(path: Path) -> ServerSettings:
    """Return the settings in a file.

    Raises:
        ShortlistError: The file is missing or invalid.
    """
    try:
        return ServerSettings.model_validate(read_json(path))
    except ValidationError as error:
        first = error.errors()[0]
        raise ShortlistError(f"{path}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None


async def serve(settings: ServerSettings, predictor: Predictor | None = None) -> None:
    """Serve over HTTP and gRPC until SIGTERM or SIGINT; then finish open requests and write the log.

    Args:
        settings: The version's.
        predictor: Used for scores instead of the Triton of the settings.

    Raises:
        ShortlistError: A port is taken, or the model folder is broken.
    """
    with contextlib.closing(listening_socket(settings.host, settings.http_port)) as http_socket:
        components = ServerComponents(settings, predictor)
        grpc_server = grpc.aio.server(options=grpc_options(settings.serving.limits))
        grpc_server.add_generic_rpc_handlers((GRPCApp(components.service).handler,))
        _bind(grpc_server, settings.host, settings.grpc_port)
        http_server = _HTTPServer(_http_config(components.service))
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        await grpc_server.start()
        http = asyncio.create_task(http_server.serve(sockets=listeners(http_socket)))
        components.start()
        with _background_tasks(settings, components.service):
            _log.info("version %d: HTTP on %d, gRPC on %d", settings.version, settings.http_port, settings.grpc_port)
            await stop.wait()
            _log.info("stopping")
            components.service.stopping = True
            http_server.should_exit = True
            await asyncio.gather(grpc_server.stop(_GRACE_SECONDS), http)
        await components.close()


@contextlib.contextmanager
def _background_tasks(settings: ServerSettings, service: Service) -> Iterator[None]:
    """While the block runs, measure the loop delay and serve health on its own port, if one is declared."""
    tasks = [asyncio.create_task(service.admission.measure_loop_delay())]
    try:
        if settings.health_port is None:
            yield
            return
        try:
            health = HealthServer(settings.host, settings.health_port, service.problems, service.metrics.text)
        except OSError as error:
            raise _port_error(settings.host, settings.health_port, error) from None
        tasks.append(asyncio.create_task(health.poll_readiness(service.is_ready)))
        with health:
            yield
    finally:
        for task in tasks:
            task.cancel()


class ServerComponents:
    """The components of a server: model, features, logs, live counts, recommendations."""

    def __init__(self, settings: ServerSettings, predictor: Predictor | None = None) -> None:
        plan = Preprocessing.load(settings.model_folder / Files.PREPROCESSING).plan
        assembler = TensorAssembler(plan, Signature.read(settings.model_folder / FOLDER))
        self.users = (
            UserFeatureStore(settings, assembler.user, assembler.widths) if assembler.user is not None else None
        )
        self.refresh = SnapshotRefresher(
            assembler,
            settings.store_location,
            settings.serving.refresh_seconds,
            self.users.reconnect_if_stale if self.users else None,
        )
        self.predictor = predictor or Predictor(settings, assembler.one_row(), len(assembler.signature.scores))
        self.log = LogWriter(
            stream_folder(settings.predictions),
            prediction_schema(plan.declared.data),
            settings.serving.log,
            to_arrow_column,
        )
        self.counts = _event_counts(settings, plan)
        metrics = Metrics()
        self.service = Service(
            settings, assembler, self.refresh, self.users, self.predictor, self.log, metrics, self.counts
        )
        streams = stream_folder(settings.predictions.with_name("outcomes"))
        token = None if settings.stack_secrets is None else settings.stack_secrets.backend_token
        self.events = EventReceiver(
            streams, plan.declared.data, settings.serving.events, settings.host, token, metrics.count_events
        )
        self.service.events = self.events
        self.release: ReleaseRefresher | None = None
        self.user_items = self._recommend(settings, plan)
        self._add_gauges(metrics)

    def _recommend(self, settings: ServerSettings, plan: Plan) -> UserItems | None:
        """Set up recommendations if the version has a release; return users' items, if a stage reads them."""
        if settings.release is None:
            return None
        data = plan.declared.data
        recommender = open_release(settings.release, data)
        self.release = ReleaseRefresher(recommender, data, settings.store_location, settings.serving.refresh_seconds)
        window = recommender.window
        items = None
        if window is not None:
            logs = settings.predictions, settings.predictions.with_name("outcomes")
            max_items = settings.serving.limits.max_history_items
            items = UserItems(data, recommender.item_type, *logs, window, max_items)
        self.service.recommending = RecommendationService(self.service, self.release, items)
        return items

    def start(self) -> None:
        """Start the threads that poll views, releases, inputs of other versions, events and logs."""
        for part in (self.refresh, self.release, self.service.version_inputs, self.counts, self.user_items):
            if part is not None:
                part.start()

    async def close(self) -> None:
        """Stop the threads, write the logs and close the connections."""
        self.refresh.stop()
        self.service.version_inputs.stop()
        if self.release is not None:
            self.release.stop()
        if self.user_items is not None:
            self.user_items.stop()
        if self.counts is not None:
            await asyncio.to_thread(self.counts.stop)
        await asyncio.to_thread(self.log.close)
        await asyncio.to_thread(self.events.close)
        self.predictor.close()
        if self.users is not None:
            self.users.close()

    def _add_gauges(self, metrics: Metrics) -> None:
        gauges: tuple[tuple[str, str, Callable[[], float]], ...] = (
            ("log_dropped", "Answers dropped because the prediction log's buffer was full", lambda: self.log.dropped),
            ("log_written", "Answers in the prediction log, on the disk", lambda: self.log.written),
            ("log_waiting", "Answers in memory that are not written yet", lambda: self.log.waiting),
            ("log_waiting_bytes", "Approximate memory of these answers in bytes", lambda: self.log.waiting_bytes),
            ("outcomes_broken", "1 while events cannot be written", lambda: self.events.problem is not None),
            ("log_broken", "1 while the prediction log cannot be written", lambda: self.log.problem is not None),
            ("snapshot_age_seconds", "Seconds since the loaded views were published", self._snapshot_age),
            (
                "features_age_seconds",
                "Seconds since the end of the newest tile that the loaded views count",
                self._feature_age,
            ),
            ("features_max_age_seconds", "Limit of features_age_seconds, or infinity", self._max_age),
            ("snapshot_broken", "1 while newer views cannot be read", lambda: self.refresh.problem is not None),
            ("users_broken", "1 while users' features cannot be read", self._users_broken),
        )
        admission = self.service.admission
        gauges += (
            ("requests_waiting", "Requests that wait for a slot", lambda: admission.waiting),
            ("requests_refused", "Requests refused because too many wait", lambda: admission.refused),
        )
        if (recommending := self.service.recommending) is not None:
            description = "Seconds since the end of the newest day that the candidate sources were fitted on"
            gauges += (
                ("index_age_seconds", description, lambda: recommending.index_age_seconds),
                ("release_broken", "1 while a refreshed release cannot be read", self._release_broken),
            )
        if (history := self.user_items) is not None:
            gauges += (
                ("history_broken", "1 while newer answers cannot be read", lambda: history.problem is not None),
                ("history_items", "Items shown to users that are remembered", lambda: history.items),
                (
                    "history_forgotten",
                    "Users whose history was dropped because there were too many items",
                    lambda: history.forgotten,
                ),
            )
        if (counts := self.counts) is not None:
            gauges += (
                ("events_counted", "Rows and outcomes counted as they arrived", lambda: counts.counted),
                ("events_too_late", "Rows and outcomes whose tile was closed", lambda: counts.too_late),
                ("events_delay_seconds", "Delay of the counts of open tiles", lambda: counts.delay_seconds),
                ("events_uncounted", "Rows not counted for lack of memory", lambda: counts.uncounted),
                ("events_beyond_share", "Rows beyond a share, which do not count", lambda: counts.beyond_share),
                ("events_bytes", "Memory of counts and of requests without outcomes", lambda: counts.bytes),
                ("sessions_bytes", "Memory of the events in live sequences", lambda: counts.sessions_bytes),
                ("sessions_dropped", "Keys whose events were dropped for lack of memory", lambda: counts.dropped),
                ("events_max_delay_seconds", "Limit of events_delay_seconds", lambda: counts.max_delay_seconds),
                ("events_broken", "1 while events cannot be written or counted", lambda: counts.problem is not None),
            )
        for name, description, value in gauges:
            metrics.add_gauge(f"shortlist_{name}", description, value)

    def _snapshot_age(self) -> float:
        return age_seconds(self.refresh.published)

    def _feature_age(self) -> float:
        return age_seconds(self.refresh.counted_until)

    def _max_age(self) -> float:
        limit = self.service.settings.serving.max_feature_age
        return parse_duration(limit).total_seconds() if limit is not None else float("inf")

    def _release_broken(self) -> bool:
        return self.release is not None and self.release.problem is not None

    def _users_broken(self) -> bool:
        return self.users is not None and self.users.problem is not None


def _event_counts(settings: ServerSettings, plan: Plan) -> EventCounts | None:
    """Return the live counts; None when no model of the spec reads live counts.

    A model that reads none still writes its rows to the event log, because other models of the spec count them.
    """
    if plan.streaming is None:
        return None
    folders = settings.predictions.with_name("events"), settings.predictions.with_name("outcomes")
    return EventCounts(plan.streaming, plan.declared.data, *folders, settings.serving)


def grpc_options(limits: Limits) -> list[tuple[str, int]]:
    """Return the gRPC server options; gRPC refuses longer messages with RESOURCE_EXHAUSTED."""
    return [
        ("grpc.max_send_message_length", -1),
        ("grpc.max_receive_message_length", limits.max_request_bytes),
        ("grpc.max_connection_idle_ms", 1_000 * _IDLE_SECONDS),
        ("grpc.so_reuseport", 0),  # a port in use must be an error; otherwise two servers would share its requests
    ]


class _HTTPServer(uvicorn.Server):
    """uvicorn without signal handlers; `serve` handles the signals."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Do not capture signals."""
        yield


def _http_config(service: Service) -> uvicorn.Config:
    return uvicorn.Config(
        http_app(service),
        http=connection_class(service),
        ws="none",
        loop="none",  # the event loop runs already
        lifespan="off",
        access_log=False,
        log_config=None,
        server_header=False,
        timeout_keep_alive=_IDLE_SECONDS,
        timeout_graceful_shutdown=_GRACE_SECONDS,
    )


def listening_socket(host: str, port: int) -> socket.socket:
    """Return a listening TCP socket.

    Raises:
        ShortlistError: The port is in use.
    """
    # IPPROTO_TCP is explicit: asyncio disables Nagle's algorithm only for such sockets; with it, answers wait 40 ms.
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(2048)
    except OSError as error:
        listening.close()
        raise _port_error(host, port, error) from None
    return listening


def listeners(listening: socket.socket) -> list[socket.socket]:
    """Return duplicates of a listening socket: libuv accepts one connection per socket and loop round.

    With one socket, n new connections of a gateway wait up to n rounds. Rounds are long under load, and a request that
    waits to be accepted is neither counted nor refused.
    """
    return [listening, *(listening.dup() for _ in range(_ACCEPTED_PER_ROUND - 1))]


def _bind(server: grpc.aio.Server, host: str, port: int) -> None:
    try:
        server.add_insecure_port(f"{host}:{port}")
    except RuntimeError as error:
        raise _port_error(host, port, error) from None


def _port_error(host: str, port: int, error: Exception) -> ShortlistError:
    return ShortlistError(f"port {port} of {host} is not available: {error}; stop what uses it, or choose another")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
