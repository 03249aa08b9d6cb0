"""The Feast store that serving reads, filled from the same Parquet files that training joins."""

from __future__ import annotations

import importlib.util
import os
import sys
import tempfile
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import polars as pl

from shortlist.contracts import Columns, DataError, ShortlistError
from shortlist.features.feast.feast_environment import (
    ONLINE_VARIABLE,
    PROJECT_VARIABLE,
    REGISTRY_VARIABLE,
    environment_variables,
    silence_feast,
    temporary_environment,
)
from shortlist.features.feast.feast_store_location import REGISTRY, FeastStoreLocation, feast_store_location
from shortlist.features.feast.materialised import MaterialisationRecord, check_exact_integers
from shortlist.features.stored_views.view_index import StoredView, ViewIndex
from shortlist.spec.runtime import OnlineStore
from shortlist.storage.artefacts import write_text
from shortlist.system.progress import progress
from shortlist.system.project import project_root

MAX_ONLINE_KEYS: Final = 50_000
"""Most keys of an online view that is not the user's own. Feast writes some 40 000 values a second, so such a view of
20 features takes 25 s; serving reads a larger one, and all candidate items, from a snapshot in memory."""

CONFIGURATION: Final = "feature_store.yaml"
"""File in the folder of a spec's store with which Feast's own commands and clients read it."""

_KEYS_PER_READ: Final = 1_000  # SQLite takes at most 32 766 parameters
_BEFORE_EVERYTHING: Final = datetime(1900, 1, 1, tzinfo=UTC)
_NEXT: Final = timedelta(microseconds=1)


def is_online_view(view: StoredView, user: str | None) -> bool:
    """Return whether a view is kept in the online store; `user` names the column that is the user."""
    return view.key_names == (user,) or view.newest_keys <= MAX_ONLINE_KEYS


def apply(
    views: Path,
    store: Path | FeastStoreLocation,
    project: str,
    online: OnlineStore,
    user: str | None = None,
    address: str = "",
) -> FeastStore:
    """Register the views of a fit, and only them, in Feast; do nothing where nothing changed.

    Args:
        views: Folder with `views.json` and the Parquet files, which Feast reads in place.
        store: Location of the registry, the SQLite online store and the record of materialisation; made when missing.
        project: Name of the spec.
        online: The online store.
        user: The column that is the user.
        address: Address at which the views were published, if they were.

    Raises:
        ShortlistError: The environment variable with the online store's address is not set, or a server is down.
    """
    location = feast_store_location(store)
    with (
        location.write_lock(),
        temporary_environment(environment_variables(views, location, project, online, user, address)),
        silence_feast(),
    ):
        with location.registry_lock():
            feast = _open()
        declared = _declared()
        feast.apply(declared, objects_to_delete=_stale_objects(feast, declared), partial=False)
        online.prepare(location.file)
        if location.folder is not None:
            write_text(location.file(CONFIGURATION), _public_configuration(location, online))
        return FeastStore(feast, ViewIndex.read(views), location)


def _public_configuration(location: FeastStoreLocation, online: OnlineStore) -> str:
    """Return `feature_repo/feature_store.yaml` with the values of a spec, for Feast's own commands and clients.

    Addresses of servers, which may hold passwords, stay names of environment variables.
    """
    secrets = {
        REGISTRY_VARIABLE: location.database is not None,
        ONLINE_VARIABLE: online.is_shared,
    }
    text = (project_root() / "feature_repo" / CONFIGURATION).read_text(encoding="utf-8")
    for name in (PROJECT_VARIABLE, REGISTRY_VARIABLE, ONLINE_VARIABLE):
        if not secrets.get(name):
            text = text.replace(f"${{{name}}}", os.environ[name])
    return "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#")) + "\n"


def connect(views: Path, store: Path | FeastStoreLocation, project: str, online: OnlineStore) -> FeastStore:
    """Open what `apply` registered.

    Raises:
        ShortlistError: Nothing was applied there, or the online store's address is not set.
    """
    location = feast_store_location(store).served_location
    if location.database is None and not location.file(REGISTRY).exists():
        raise ShortlistError(f"{location.folder}: no Feast registry here; run the features step first")
    with (
        temporary_environment(environment_variables(views, location, project, online)),
        silence_feast(),
        location.registry_lock(),
    ):
        return FeastStore(_open(), ViewIndex.read(views), location)


@dataclass(frozen=True)
class _Due:
    """The rows of a view that are not online yet: first moment, and number of keys."""

    start: datetime
    keys: int


class FeastStore:
    """A project in Feast; get one from `apply` or `connect`."""

    def __init__(self, feast: Any, views: ViewIndex, location: FeastStoreLocation) -> None:
        self.views = views
        self._feast = feast
        self._online = {view.name for view in feast.list_feature_views() if view.online}
        self._materialised = MaterialisationRecord(location, views)
        self._location = location

    @property
    def online_views(self) -> tuple[StoredView, ...]:
        """The views in the online store; serving reads the others from `ViewIndex.snapshot`."""
        return tuple(view for view in self.views.views if view.name in self._online)

    def valid_until(self, name: str) -> datetime | None:
        """Return the moment up to which a view is online; null before the first time."""
        return self._materialised.until(name)

    def written_views(self) -> dict[str, Any]:
        """Return the record of every view that is online; see `MaterialisationRecord.by_view`."""
        return self._materialised.by_view()

    def materialize(self, until: datetime) -> dict[str, int]:
        """Bring the online store up to a moment, included; return the keys written per view.

        Only new rows are written. Where a view's past differs from the one that was written (another log, another
        spec), all rows are. An earlier moment than the last one changes nothing. A killed call can be repeated.
        """
        with self._location.write_lock():
            due = {view.name: self._due(view, until) for view in self.online_views}
            with progress("to the online store", sum(work.keys for work in due.values() if work), "keys") as advance:
                for view in self.online_views:
                    if work := due[view.name]:
                        self._write(view, work, until)
                        advance(work.keys, view.name)
        return {name: work.keys if work else 0 for name, work in due.items()}

    def _due(self, view: StoredView, until: datetime) -> _Due | None:
        last = self._materialised.until(view.name) if self._materialised.past_is_unchanged(view) else None
        if last is not None and until <= last:
            return None
        check_exact_integers(view, self.views.path(view))
        start = _BEFORE_EVERYTHING if last is None else last + _NEXT
        return _Due(start, self._materialised.changed_keys(view, start, until))

    def _write(self, view: StoredView, due: _Due, until: datetime) -> None:
        vanished = self._materialised.keys_vanished(view, until)
        self._materialised.begin(view, until)
        with silence_feast():
            if vanished:
                self._clear(view)
            if due.keys:
                self._feast.materialize(due.start, until, [view.name])
        self._materialised.finish(view, until)

    def _clear(self, view: StoredView) -> None:
        """Empty a view in the online store, so that removed keys do not keep their values."""
        declared = self._feast.get_feature_view(view.name)
        self._feast.apply([], objects_to_delete=[declared], partial=False)
        self._feast.apply([declared])

    def historical(self, rows: pl.DataFrame, views: Sequence[str]) -> pl.DataFrame:
        """Return rows, in their order, with Feast's point-in-time answers in columns `<view>:<feature>`.

        Args:
            rows: The views' key columns, and `event_time`. A null or unknown key gives nulls.
            views: Names of the views to ask.

        Raises:
            DataError: Feast lost or doubled rows.
        """
        for name in views:
            rows = with_answers(rows, self.views.view(name), self._at_event_time)
        return rows

    def online(self, rows: pl.DataFrame, views: Sequence[str]) -> pl.DataFrame:
        """Return rows, in their order, with the online store's answers in columns `<view>:<feature>`.

        Args:
            rows: The views' key columns. A null or unknown key gives nulls.
            views: Names of the views to ask.

        Raises:
            ShortlistError: A view is not kept online.
            DataError: Feast lost or doubled rows.
        """
        for name in views:
            if self.views.view(name) not in self.online_views:
                raise ShortlistError(f"view '{name}' is too large for the online store; read ViewIndex.snapshot")
            rows = with_answers(rows, self.views.view(name), self._now)
        return rows

    def _at_event_time(self, view: StoredView, key_rows: pl.DataFrame) -> pl.DataFrame:
        entities = key_rows.select(*view.key_names, ROW, pl.col(Columns.TIME).alias(Columns.VALID_FROM))
        with silence_feast():
            job = self._feast.get_historical_features(entity_df=entities.to_pandas(), features=list(view.columns))
            answers = pl.from_arrow(job.to_arrow())
        assert isinstance(answers, pl.DataFrame)
        return answers

    def _now(self, view: StoredView, key_rows: pl.DataFrame) -> pl.DataFrame:
        keys = key_rows.select(view.key_names).unique(maintain_order=True)
        schema = {column.name: column.polars for column in (*view.keys, *view.features)}
        parts = []
        for part in keys.iter_slices(_KEYS_PER_READ):
            with silence_feast():
                answer = self._feast.get_online_features(
                    features=list(view.columns), entity_rows=part.to_dict(as_series=False)
                ).to_dict()
            parts.append(pl.DataFrame(answer, schema_overrides=schema))
        return key_rows.select(ROW, *view.key_names).join(pl.concat(parts), on=view.key_names, how="left")


class UserReader:
    """Users' rows from the online store, as plain values; get one from `user_reader`.

    It reads the store view by view: `get_online_features` takes six times as long to prepare and wrap the answer.
    """

    def __init__(self, feast: Any, user: str, probe: Callable[[], None] | None) -> None:
        from feast.infra.online_stores.helpers import get_online_store_from_config

        self._config = feast.config
        self._store = get_online_store_from_config(feast.config.online_store)
        self._user = user
        self._probe = probe
        views = [view for view in feast.list_feature_views() if view.online and view.join_keys == [user]]
        self._views = {f"{view.name}:{feature.name}": view for view in views for feature in view.features}

    @property
    def is_local(self) -> bool:
        """Whether a read reads a local file, which takes less time than handing it to a thread."""
        return self._probe is not None

    @property
    def columns(self) -> frozenset[str]:
        """Names of the columns that can be read: `<view>:<feature>`."""
        return frozenset(self._views)

    def rows(self, users: Sequence[int | str], columns: Sequence[str]) -> dict[str, list[Any]]:
        """Return a value per user for every column; None where it is null or the user unknown.

        Raises:
            Exception: Any error of Feast and its store.
        """
        from feast.type_map import feast_value_type_to_python_type as plain

        if self._probe is not None:
            self._probe()
        keys = [self._key(user) for user in users]
        columns_by_view: dict[str, list[str]] = {}
        for column in columns:
            columns_by_view.setdefault(self._views[column].name, []).append(column)
        values_by_column: dict[str, list[Any]] = {}
        for names in columns_by_view.values():
            features = [name.partition(":")[2] for name in names]
            # Feast's Redis store adds names of its own to the list that it is given.
            answers = self._store.online_read(self._config, self._views[names[0]], keys, list(features))
            for column, feature in zip(names, features, strict=True):
                values = ((answer or {}).get(feature) for _, answer in answers)
                values_by_column[column] = [None if value is None else plain(value) for value in values]
        return values_by_column

    def _key(self, user: int | str) -> Any:
        from feast.protos.feast.types.EntityKey_pb2 import EntityKey
        from feast.protos.feast.types.Value_pb2 import Value

        value = Value(string_val=user) if isinstance(user, str) else Value(int64_val=user)
        return EntityKey(join_keys=[self._user], entity_values=[value])


def user_reader(store: Path | FeastStoreLocation, project: str, online: OnlineStore, user: str) -> UserReader:
    """Open the reader of users' features for serving; the files of the views need not be on this machine.

    Raises:
        ShortlistError: There is no registry or no online store, or its address is not set.
    """
    location = feast_store_location(store).served_location
    files = online.files(location.file)
    for path in files if location.database is not None else (location.file(REGISTRY), *files):
        if not path.exists():  # SQLite would make an empty one
            raise ShortlistError(f"{path}: does not exist; run the features step first")
    no_views = Path()  # of the views only the registry is read
    with (
        temporary_environment(environment_variables(no_views, location, project, online)),
        silence_feast(),
        location.registry_lock(),
    ):
        return UserReader(_open(), user, online.probe(location.file))


def _repository() -> Path:
    return project_root() / "feature_repo"


def _open() -> Any:
    return import_feast().FeatureStore(repo_path=str(_repository()), fs_yaml_file=_repository() / "feature_store.yaml")


def _declared() -> list[Any]:
    """Return the Feast objects of `feature_repo/definitions.py`, read afresh because views differ between runs."""
    spec = importlib.util.spec_from_file_location("shortlist_feature_definitions", _repository() / "definitions.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    feast = import_feast()
    kinds = (feast.Entity, feast.FeatureView, feast.FeatureService)
    return [value for value in vars(module).values() if isinstance(value, kinds)]


def _stale_objects(feast: Any, declared: list[Any]) -> list[Any]:
    """Return registered objects of earlier runs that are no longer declared."""
    from feast.feature_view import DUMMY_ENTITY_NAME

    names = {(type(declared_object), declared_object.name) for declared_object in declared} | {
        (import_feast().Entity, DUMMY_ENTITY_NAME)
    }
    registered = [*feast.list_feature_services(), *feast.list_feature_views(), *feast.list_entities()]
    return [
        registered_object
        for registered_object in registered
        if (type(registered_object), registered_object.name) not in names
    ]


_METRICS_VARIABLES: Final = ("PROMETHEUS_MULTIPROCESS_DIR", "PROMETHEUS_MULTIPROC_DIR")
"""Variables that name the folder of metrics of several processes; importing Feast sets both."""


def import_feast() -> Any:
    """Import Feast in a fifth of its usual processor time (ADR 7).

    It would load torch only to offer tensors that are not used here, and let typeguard parse and rewrite all its
    classes to check the types of every call. It would also make a folder for metrics that it never serves here.
    """
    if "feast" in sys.modules:
        return sys.modules["feast"]
    # First: it would write all metrics to files if it was imported with the variable below.
    import prometheus_client  # noqa: F401
    import typeguard

    torch_is_absent, typechecked = "torch" not in sys.modules, typeguard.typechecked
    if torch_is_absent:
        sys.modules["torch"] = None  # type: ignore[assignment]
    typeguard.typechecked = _without_typeguard
    declared = {name: os.environ.get(name) for name in _METRICS_VARIABLES}
    os.environ.setdefault(_METRICS_VARIABLES[0], tempfile.gettempdir())  # it makes no folder of its own
    try:
        with warnings.catch_warnings():  # Feast replaces the warning filters
            import feast
            import feast.infra.data_sources.mlflow  # as the offline store does when it reads for the first time
    finally:
        typeguard.typechecked = typechecked
        for name, value in declared.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
        if torch_is_absent:
            del sys.modules["torch"]
    return feast


def _without_typeguard(target: Any = None, **_options: Any) -> Any:
    """Replace `typeguard.typechecked`: return the class or function unchanged."""
    return target if target is not None else _without_typeguard


ROW = "__row"
"""Number of the row that looks up; every answer has it."""

AskView = Callable[[StoredView, pl.DataFrame], pl.DataFrame]
"""Rows with keys and `__row` in, as many rows with features and `__row` out, in any order."""


def with_answers(rows: pl.DataFrame, view: StoredView, ask: AskView) -> pl.DataFrame:
    """Return rows, in their order, with columns `<view>:<feature>`; null where a key is null or unknown.

    Args:
        rows: Has the view's key columns.
        view: The view to look up.
        ask: Looks up rows in the view; it never gets a null key.

    Raises:
        DataError: There is not one answer per looked-up row.
    """
    numbered = rows.with_row_index(ROW)
    key_rows = numbered.with_columns(pl.col(key.name).cast(key.polars) for key in view.keys).drop_nulls(view.key_names)
    answers = ask(view, key_rows) if key_rows.height else key_rows.select(ROW)
    if answers.height != key_rows.height or answers[ROW].n_unique() != key_rows.height:
        raise DataError(
            f"Feast answered {key_rows.height} rows of view '{view.name}' with {answers.height}."
            " Rows were lost or doubled; feature_repo/feature_store.yaml must say `offline_store: duckdb`."
        )
    columns = zip(view.columns, view.features, strict=True)
    answer_columns = answers.select(
        ROW, *(_typed(answers, name, feature.name, feature.polars) for name, feature in columns)
    )
    return numbered.join(answer_columns, on=ROW, how="left", maintain_order="left").drop(ROW)


def _typed(answers: pl.DataFrame, name: str, feature: str, dtype: pl.DataType) -> pl.Expr:
    value = pl.col(feature) if feature in answers.columns else pl.lit(None)
    return value.cast(dtype).alias(name)
