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
from shortlist.features.plan import Plan
from shortlist.features.preprocessing import Preprocessing
from shortlist.recommending.release import open_release
from shortlist.serving.export.signature import FOLDER, Signature
from shortlist.serving.log.log_writer import LogWriter, process_folder
from shortlist.serving.log.logs import prediction_schema
from shortlist.serving.server.event_counts import EventCounts
from shortlist.serving.server.grpc_app import GRPCApp
from shortlist.serving.server.health_server import HealthServer
from shortlist.serving.server.http_app import http_app
from shortlist.serving.server.http_inference import connection_class
from shortlist.serving.server.logged_columns import to_arrow_column
from shortlist.serving.server.metrics import Metrics, age_seconds
from shortlist.serving.server.predictor import Predictor
from shortlist.serving.server.recommending import RecommendationService
from shortlist.serving.server.release_refresher import ReleaseRefresher
from shortlist.serving.server.service import Service
from shortlist.serving.server.settings import ServerSettings
from shortlist.serving.server.snapshot_refresher import SnapshotRefresher
from shortlist.serving.server.tensor_assembler import TensorAssembler
from shortlist.serving.server.user_items import UserItems
from shortlist.serving.server.users import UserFeatureStore
from shortlist.spec.durations import parse_duration
from shortlist.spec.serving import Limits
from shortlist.storage.artefacts import read_json

_GRACE_SECONDS: Final = 30
_IDLE_SECONDS: Final = 7_200
"""Whoever keeps connections open closes them first: a request never meets a connection that is being closed."""
_ACCEPTED_PER_ROUND: Final = 16
"""Connections per round of the event loop."""
_SWITCH_SECONDS: Final = 0.0005
"""After which a thread lets another one that waits for Python go on: a scan of vectors begins as soon as it is asked
for, and a request waits less for a thread that reads logs or views. Python's own 5 ms are half of a slate's time."""
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
        ShortlistError: The file is missing or says something else.
    """
    try:
        return ServerSettings.model_validate(read_json(path))
    except ValidationError as error:
        first = error.errors()[0]
        raise ShortlistError(f"{path}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None


async def serve(settings: ServerSettings, predictor: Predictor | None = None) -> None:
    """Serve over HTTP and gRPC until SIGTERM or SIGINT; finish what is under way and write the log before returning.

    Args:
        settings: The version's.
        predictor: What to ask for scores instead of the settings' Triton.

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
    """While the block runs, keep time, and answer for health where a port is for that."""
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
    """Everything behind the ports."""

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
            process_folder(settings.predictions, settings.version),
            prediction_schema(plan.declared.data),
            settings.serving.log,
            to_arrow_column,
        )
        self.counts = _event_counts(settings, plan)
        metrics = Metrics()
        self.service = Service(
            settings, assembler, self.refresh, self.users, self.predictor, self.log, metrics, self.counts
        )
        self.release: ReleaseRefresher | None = None
        self.user_items = self._recommend(settings, plan)
        self._add_gauges(metrics)

    def _recommend(self, settings: ServerSettings, plan: Plan) -> UserItems | None:
        """Let the service recommend where something is released with the model; return what follows users."""
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
        """Begin to follow what is published and logged."""
        for part in (self.refresh, self.release, self.counts, self.user_items):
            if part is not None:
                part.start()

    async def close(self) -> None:
        """Write the logs and let go of everything."""
        self.refresh.stop()
        if self.release is not None:
            self.release.stop()
        if self.user_items is not None:
            self.user_items.stop()
        if self.counts is not None:
            await asyncio.to_thread(self.counts.stop)
        await asyncio.to_thread(self.log.close)
        self.predictor.close()
        if self.users is not None:
            self.users.close()

    def _add_gauges(self, metrics: Metrics) -> None:
        gauges: tuple[tuple[str, str, Callable[[], float]], ...] = (
            ("log_dropped", "Answers that the prediction log had no room for", lambda: self.log.dropped),
            ("log_written", "Answers in the prediction log's files", lambda: self.log.written),
            ("log_waiting", "Answers in memory only", lambda: self.log.waiting),
            ("log_waiting_bytes", "Memory of these answers, about", lambda: self.log.waiting_bytes),
            ("log_broken", "1 while the prediction log cannot be written", lambda: self.log.problem is not None),
            ("snapshot_age_seconds", "Since the views in place were published", self._snapshot_age),
            (
                "features_age_seconds",
                "Since the end of the newest tile that the views in place count",
                self._feature_age,
            ),
            ("features_max_age_seconds", "The declared limit of that; infinite where there is none", self._max_age),
            ("snapshot_broken", "1 while newer views cannot be read", lambda: self.refresh.problem is not None),
            ("users_broken", "1 while users' features cannot be read", self._users_broken),
        )
        admission = self.service.admission
        gauges += (
            ("requests_waiting", "Requests taken on that are not worked on yet", lambda: admission.waiting),
            ("requests_refused", "Requests refused because too many wait", lambda: admission.refused),
        )
        if (recommending := self.service.recommending) is not None:
            description = "Since the end of the newest day that the sources of candidates learnt from"
            gauges += (
                ("index_age_seconds", description, lambda: recommending.index_age_seconds),
                ("release_broken", "1 while a refreshed release cannot be read", self._release_broken),
            )
        if (history := self.user_items) is not None:
            gauges += (
                ("history_broken", "1 while newer answers are not known", lambda: history.problem is not None),
                ("history_items", "Items that users were shown, as remembered", lambda: history.items),
                (
                    "history_forgotten",
                    "Users who were forgotten because there were too many",
                    lambda: history.forgotten,
                ),
            )
        if (counts := self.counts) is not None:
            gauges += (
                ("events_counted", "Rows and outcomes counted as they arrived", lambda: counts.counted),
                ("events_too_late", "Of them, those whose tile was closed", lambda: counts.too_late),
                ("events_delay_seconds", "How far behind the counts of open tiles are", lambda: counts.delay_seconds),
                ("events_uncounted", "Rows that did not fit into the memory of the counts", lambda: counts.uncounted),
                ("events_bytes", "Memory of the counts and of requests that wait for outcomes", lambda: counts.bytes),
                ("sessions_bytes", "Memory of the events that live sequences list", lambda: counts.sessions_bytes),
                ("sessions_dropped", "Keys whose events did not fit into it", lambda: counts.dropped),
                ("events_max_delay_seconds", "The declared limit of that", lambda: counts.max_delay_seconds),
                ("events_broken", "1 while events are not kept or not counted", lambda: counts.problem is not None),
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
    """Return what counts events as they arrive; None where no model of the spec reads such counts.

    A model that reads none keeps its answers all the same: others count them.
    """
    if plan.streaming is None:
        return None
    folders = settings.predictions.with_name("events"), settings.predictions.with_name("outcomes")
    return EventCounts(plan.streaming, plan.declared.data, *folders)


def grpc_options(limits: Limits) -> list[tuple[str, int]]:
    """Return the options of a server of gRPC's; it refuses a longer message with RESOURCE_EXHAUSTED by itself."""
    return [
        ("grpc.max_send_message_length", -1),
        ("grpc.max_receive_message_length", limits.max_request_bytes),
        ("grpc.max_connection_idle_ms", 1_000 * _IDLE_SECONDS),
        ("grpc.so_reuseport", 0),  # a port that is taken must be an error, not a share of somebody else's requests
    ]


class _HTTPServer(uvicorn.Server):
    """Leaves the signals to `serve`."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none."""
        yield


def _http_config(service: Service) -> uvicorn.Config:
    return uvicorn.Config(
        http_app(service),
        http=connection_class(service),
        ws="none",
        loop="none",  # ours runs already
        lifespan="off",
        access_log=False,
        log_config=None,
        server_header=False,
        timeout_keep_alive=_IDLE_SECONDS,
        timeout_graceful_shutdown=_GRACE_SECONDS,
    )


def listening_socket(host: str, port: int) -> socket.socket:
    """Return a socket that listens.

    Raises:
        ShortlistError: The port is taken.
    """
    # By name: asyncio turns Nagle's algorithm off only for sockets that say TCP, and with it answers wait 40 ms.
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
    """Return a listening socket several times: libuv accepts one connection per socket and round of the event loop.

    With one, a gateway's new connections wait for as many rounds as there are of them. The rounds are long when the
    server has much to do, and a request that waits to be accepted is neither counted nor refused.
    """
    return [listening, *(listening.dup() for _ in range(_ACCEPTED_PER_ROUND - 1))]


def _bind(server: grpc.aio.Server, host: str, port: int) -> None:
    try:
        server.add_insecure_port(f"{host}:{port}")
    except RuntimeError as error:
        raise _port_error(host, port, error) from None


def _port_error(host: str, port: int, error: Exception) -> ShortlistError:
    return ShortlistError(f"port {port} of {host} cannot be had: {error}; stop what uses it, or choose another")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
