"""Incremental reader of access logs, which a gateway writes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Final, Protocol

import orjson
import polars as pl

from shortlist.rollout.evidence.counts import REQUEST_CONDITIONS
from shortlist.serving.server.requests.paths import RANK, RECOMMEND

ACCESS_LOG: Final = ".access.jsonl"
"""End of the names of access logs; each process of a gateway writes its own."""
CHUNK_BYTES: Final = 16 * 2**20
"""Bytes that are read at once."""
SCHEMA: Final = pl.Schema(
    {
        "time": pl.String(),
        "id": pl.String(),
        "user": pl.String(),
        "sender": pl.String(),
        "track": pl.String(),
        "rollout": pl.String(),
        "step": pl.String(),
        "path": pl.String(),
        "status": pl.Int64(),
        "grpc": pl.Int64(),
        "details": pl.String(),
        "us": pl.Int64(),
    }
)
_TIME: Final = "%Y-%m-%dT%H:%M:%S%.6fZ"
INFERENCE_PATH: Final = rf"(/infer|/ModelInfer|^{RANK}|^{RECOMMEND})(\?|$)"
"""Pattern of the end of inference paths, over HTTP and gRPC."""


@dataclass(frozen=True)
class _Position:
    inode: int
    offset: int


class AccessLogSource(Protocol):
    """A log of ended requests."""

    @property
    def unreadable(self) -> int:
        """Number of lines that could not be read."""

    def read(self) -> Iterator[pl.DataFrame]:
        """Yield the lines since the last call; columns of `SCHEMA`."""


class AccessLog:
    """A growing file of JSON lines; an incomplete last line is left for the next reading."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._position: _Position | None = None
        self._is_first_reading = True
        self.unreadable = 0
        """Number of lines that are no JSON object."""

    def read(self) -> Iterator[pl.DataFrame]:
        """Yield the lines since the last reading, in frames of bounded size.

        A rotated file is read to its end under its new name, if that is the old name with a suffix; the new file is
        read from its start. A file that became shorter is read again from its start. The first reading begins with the
        files that were rotated before.
        """
        if self._is_first_reading:
            self._is_first_reading = False
            yield from self._read_rotated()
        try:
            inode = self._path.stat().st_ino
        except FileNotFoundError:
            return
        if self._position and self._position.inode != inode:
            yield from self._rest_of_renamed(self._position)
            self._position = None
        offset = self._position.offset if self._position else 0
        yield from self._read_frames(self._path, _Position(inode, offset))

    def _read_rotated(self) -> Iterator[pl.DataFrame]:
        for path in sorted(self._path.parent.glob(f"{self._path.name}?*")):
            with suppress(FileNotFoundError):
                yield from self._read_frames(path, _Position(path.stat().st_ino, 0))
        self._position = None

    def _rest_of_renamed(self, position: _Position) -> Iterator[pl.DataFrame]:
        for path in self._path.parent.glob(f"{self._path.name}?*"):
            if path.exists() and path.stat().st_ino == position.inode:
                yield from self._read_frames(path, position)
                return

    def _read_frames(self, path: Path, position: _Position) -> Iterator[pl.DataFrame]:
        try:
            file = path.open("rb")
        except FileNotFoundError:  # renamed just now
            return
        with file:
            size = file.seek(0, 2)
            offset = file.seek(position.offset if position.offset <= size else 0)
            self._position = _Position(position.inode, offset)
            while chunk := file.read(CHUNK_BYTES):
                complete_lines = chunk[: chunk.rfind(b"\n") + 1]
                if not complete_lines:  # half a line, or one longer than a chunk, which is none of Envoy's
                    if len(chunk) < CHUNK_BYTES:
                        return
                    complete_lines = chunk
                offset = file.seek(offset + len(complete_lines))
                self._position = _Position(position.inode, offset)
                yield self._parse(complete_lines)

    def _parse(self, lines: bytes) -> pl.DataFrame:
        try:
            return pl.read_ndjson(BytesIO(lines), schema=SCHEMA)
        except pl.exceptions.PolarsError:
            return self._parse_by_line(lines)

    def _parse_by_line(self, lines: bytes) -> pl.DataFrame:
        # Slower; only for chunks with a line that a killed process left incomplete.
        rows = []
        for line in lines.splitlines():
            try:
                row = _row(orjson.loads(line))
            except ValueError:
                self.unreadable += 1
            else:
                rows.append(row)
        return pl.DataFrame(rows, schema=SCHEMA, orient="row")


def _row(line: object) -> tuple[str | int | None, ...]:
    if not isinstance(line, dict):
        raise ValueError
    return tuple(_cell(line.get(name), kind) for name, kind in SCHEMA.items())


def _cell(value: object, kind: pl.DataType) -> str | int | None:
    if value is None:
        return None
    return int(str(value)) if kind == pl.Int64() else str(value)


class AccessLogFolder:
    """The access logs of all processes of a gateway, in one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._logs: dict[Path, AccessLog] = {}

    @property
    def unreadable(self) -> int:
        """Number of lines that are no JSON object."""
        return sum(log.unreadable for log in self._logs.values())

    def read(self) -> Iterator[pl.DataFrame]:
        """Yield the lines since the last reading, log after log."""
        for path in sorted(self._folder.glob(f"*{ACCESS_LOG}")):
            self._logs.setdefault(path, AccessLog(path))
        for log in self._logs.values():
            yield from log.read()


def rollout_requests(lines: pl.DataFrame, rollout: str) -> pl.DataFrame:
    """Return the inference requests of one rollout.

    Args:
        lines: Lines of an access log.
        rollout: Id of the rollout.

    Returns:
        Columns id, user, sender, step (Int32), canary, began (microseconds of Envoy's clock, 0 when unknown), us
        (latency; null without an answer), and a Boolean column for each of `REQUEST_CONDITIONS`.
    """
    began_at = pl.col("time").str.to_datetime(_TIME, time_unit="us", strict=False).to_physical().fill_null(0)
    return (
        lines.lazy()
        .filter(
            pl.col("rollout") == rollout,
            pl.col("track").is_in(["stable", "canary"]),
            pl.col("path").str.contains(INFERENCE_PATH),
        )
        .select(
            "id",
            "user",
            "sender",
            pl.col("step").cast(pl.Int32, strict=False),
            (pl.col("track") == "canary").alias("canary"),
            began_at.alias("began"),
            "us",
            **REQUEST_CONDITIONS,
        )
        .filter(pl.col("step") >= 0)
        .collect()
    )
