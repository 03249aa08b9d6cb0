"""Rows of all files of a table: whole files where they are small, and pieces of their beginnings, middles and ends."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import polars as pl
import pyarrow.parquet as pq

from shortlist.contracts import DataError
from shortlist.data.reading.text.streams import open_decompressed

TableFormat = Literal["csv", "tsv", "jsonl", "parquet"]
DELIMITERS: Final[dict[str, str]] = {"csv": ",", "tsv": "\t"}
_MAX_ROWS: Final = 400_000
_MAX_BYTES: Final = 32 << 20
_MIN_FILE_BYTES: Final = 64 << 10
_MIN_FILE_ROWS: Final = 500
_PIECES: Final = 8
"""Pieces that are read of a file that is not read whole."""
_MAX_UNPACKED_BYTES: Final = 1 << 30
_SIGNED_LIMIT: Final = 2**63 - 1


@dataclass(frozen=True)
class TextForm:
    """How the text of a table is written."""

    format: TableFormat
    delimiter: str = ","
    header: bool = True


def read_sample(paths: Sequence[Path], form: TextForm) -> tuple[pl.DataFrame, bool]:
    """Return rows of all files, and whether these are all rows.

    Args:
        paths: Files of one table; they may differ in columns, and in the types of a column.
        form: How they are written.

    Raises:
        DataError: A file cannot be read.
    """
    frames: list[pl.DataFrame] = []
    is_complete = True
    for path in paths:
        if form.format == "parquet":
            frame, is_whole = _sample_parquet(path, max(_MIN_FILE_ROWS, _MAX_ROWS // len(paths)))
        else:
            frame, is_whole = _sample_text(path, form, max(_MIN_FILE_BYTES, _MAX_BYTES // len(paths)))
        is_complete &= is_whole
        frames += [frame] if frame.height else []
    return (_concatenate(frames) if frames else pl.DataFrame()), is_complete


def first_lines(path: Path, max_bytes: int = 1 << 18) -> bytes:
    """Return whole lines from the beginning of a text file, without a byte order mark.

    Raises:
        DataError: The text is not UTF-8.
    """
    text = b"".join(_iter_bytes(path, max_bytes))
    cut = text if len(text) < max_bytes else text[: text.rfind(b"\n") + 1] or text
    _check_encoding(cut, path)
    return cut.removeprefix(b"\xef\xbb\xbf")


def parse_text(text: bytes, form: TextForm, path: Path, header: bool | None = None) -> pl.DataFrame:
    """Return the rows of a text; all values are texts, except in JSON.

    Raises:
        DataError: It is not written in that form.
    """
    if not text.strip():
        return pl.DataFrame()
    try:
        if form.format == "jsonl":
            return pl.read_ndjson(text, infer_schema_length=None, ignore_errors=True)
        return pl.read_csv(
            text,
            separator=form.delimiter,
            has_header=form.header if header is None else header,
            infer_schema=False,
            truncate_ragged_lines=True,
            encoding="utf8-lossy",
        )
    except pl.exceptions.PolarsError as error:
        raise DataError(
            f"{path}: not readable as {form.format} ({error}). Where a field holds a quote, the field is quoted and the"
            " quote written twice, in CSV and in TSV; write the file again with a CSV writer"
        ) from None


def _check_encoding(text: bytes, path: Path) -> None:
    if text.startswith((b"\xff\xfe", b"\xfe\xff")):
        encoding = "UTF-16"
    else:
        try:
            text.decode()
            return
        except UnicodeDecodeError as error:
            encoding = f"not UTF-8 (byte {text[error.start : error.start + 1]!r} at {error.start})"
    source = "UTF-16" if encoding == "UTF-16" else "LATIN1"
    raise DataError(f"{path}: the text is {encoding}; wanted UTF-8. Convert it: iconv -f {source} -t UTF-8 {path.name}")


def _sample_parquet(path: Path, max_rows: int) -> tuple[pl.DataFrame, bool]:
    rows = pq.ParquetFile(path).metadata.num_rows
    if rows <= max_rows:
        return pl.read_parquet(path, hive_partitioning=False), True
    piece = max(1, max_rows // _PIECES)
    starts = [(rows - piece) * place // (_PIECES - 1) for place in range(_PIECES)]
    scan = pl.scan_parquet(path, hive_partitioning=False)
    return pl.concat([scan.slice(start, piece).collect() for start in starts]), False


def _sample_text(path: Path, form: TextForm, max_bytes: int) -> tuple[pl.DataFrame, bool]:
    head = first_lines(path)
    names = head[: head.find(b"\n") + 1] if form.header and form.format != "jsonl" else b""
    pieces, is_whole = _read_pieces(path, max_bytes)
    # Pieces after the first begin within a row.
    texts = [pieces[0], *(names + piece[piece.find(b"\n") + 1 :] for piece in pieces[1:])]
    frames = [parse_text(text, form, path) for text in texts]
    return _concatenate([frame for frame in frames if frame.height] or [pl.DataFrame()]), is_whole


def _read_pieces(path: Path, max_bytes: int) -> tuple[list[bytes], bool]:
    """Return the whole text of a small file; of others pieces that end with a line, the first with the first line."""
    with path.open("rb") as file:
        is_packed = file.read(4).startswith((b"\x1f\x8b", b"\x28\xb5\x2f\xfd"))
    if is_packed:
        return _read_packed_pieces(path, max_bytes)
    size = path.stat().st_size
    if size <= max_bytes:
        return [_without_mark(path.read_bytes())], True
    piece = max_bytes // _PIECES
    pieces = []
    with path.open("rb") as file:
        for place in range(_PIECES):
            file.seek((size - piece) * place // (_PIECES - 1))
            pieces.append(_until_last_line(_without_mark(file.read(piece))))
    return pieces, False


def _read_packed_pieces(path: Path, max_bytes: int) -> tuple[list[bytes], bool]:
    """Return the beginning and the end of a packed text, of which later parts cannot be read without all before."""
    head, tail, size = bytearray(), bytearray(), 0
    for part in _iter_bytes(path, _MAX_UNPACKED_BYTES):
        room = max_bytes // 2 - len(head)
        head += part[:room]
        tail += part[room:] if room > 0 else part
        size += len(part)
        if len(tail) > 2 * max_bytes:
            del tail[: len(tail) - max_bytes // 2]
    if size <= max_bytes:
        return [_without_mark(bytes(head + tail))], True
    return [_until_last_line(_without_mark(bytes(head))), _until_last_line(bytes(tail[-max_bytes // 2 :]))], False


def _iter_bytes(path: Path, max_bytes: int) -> Iterator[bytes]:
    size, buffer = 0, bytearray(1 << 18)
    with open_decompressed(path) as stream:
        while size < max_bytes and (byte_count := stream.readinto(buffer)):
            size += byte_count
            yield bytes(buffer[:byte_count])


def _without_mark(text: bytes) -> bytes:
    return text.removeprefix(b"\xef\xbb\xbf")


def _until_last_line(text: bytes) -> bytes:
    return text[: text.rfind(b"\n") + 1] or text


def _concatenate(frames: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """Return the rows of frames in which a column may be missing, or have another type; keys keep their identity."""
    if len(frames) == 1:
        return frames[0]
    types: dict[str, set[pl.DataType]] = {}
    for frame in frames:
        for name, kind in frame.schema.items():
            types.setdefault(name, set()).add(kind)
    mixed = [name for name, kinds in types.items() if len(kinds - {pl.Null()}) > 1]
    for name in mixed:
        is_text = pl.String() in types[name] or (pl.UInt64() in types[name] and _has_large_values(frames, name))
        if is_text:
            frames = [
                frame.with_columns(_as_text(name, frame.schema[name])) if name in frame.columns else frame
                for frame in frames
            ]
    return pl.concat(frames, how="diagonal_relaxed")


def _has_large_values(frames: Sequence[pl.DataFrame], name: str) -> bool:
    tops = [frame[name].max() for frame in frames if name in frame.columns and frame.schema[name] == pl.UInt64()]
    return any(isinstance(top, int) and top > _SIGNED_LIMIT for top in tops)


def _as_text(name: str, kind: pl.DataType) -> pl.Expr:
    value = pl.col(name)
    if kind.is_float():
        whole = pl.when(value == value.round()).then(value.cast(pl.Int64(), strict=False)).cast(pl.String())
        return pl.coalesce(whole, value.cast(pl.String()))
    return value.cast(pl.String(), strict=False)
