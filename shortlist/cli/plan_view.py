"""Terminal output of a capacity plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from shortlist.contracts import Files, ShortlistError
from shortlist.planning import plan
from shortlist.planning.accelerators import Accelerator, Precision
from shortlist.planning.model_shape import ModelShape
from shortlist.planning.sharding import MAX_DEVICES, row_wise_devices, too_many_ids, unplaceable_tables
from shortlist.ranking.inputs import TableFeature, features_of
from shortlist.storage.artefacts import IntegrityError, read_json
from shortlist.storage.tables import DayTable

PRECISIONS: Sequence[Precision] = ("bf16", "tf32", "fp32")
_SOURCES = {
    "given": "given",
    "fitted": "fitted",
    "declared": "buckets",
    "bound": "at most; not fitted yet",
}
_NOTES = (
    "[1] Operations: 2 per multiply-add of every linear layer and of the interaction's N x N product (Naumov et al.,"
    " 2019); the backward pass costs twice the forward (Kaplan et al., 2020).",
    "[2] Table traffic: a looked-up row is read; in training its gradient is written, the row read and written, and its"
    " accumulator read and written (row-wise Adagrad: Mudigere et al., 2022).",
    "[3] Memory of a step: kept activations and their gradients, gathered rows and their gradients, weights, gradients"
    " and Adam's two moments (Kingma and Ba, 2015).",
    "[4] Roof: the lower of bandwidth / traffic and peak / operations (Williams, Waterman and Patterson, 2009);"
    " activations may stay in caches and are left out.",
    "[5] Expected: NVIDIA's published DLRM training on one A100-80 (2.88 M samples/s in TF32, 4.02 M in mixed precision"
    " with CUDA graphs), scaled by the roof that grows less. Not measured with this code;"
    " small models and batches are bound by kernel launches long before.",
    "[6] Tables and state are shared by rows over the fewest devices that hold them, a power of two; 15 % of a device"
    " stays free, as in TorchRec's planner (Ivchenko et al., 2022).",
    "[7] A looked-up row comes from its owner and its gradient goes back. 'By the link': the devices of a node; between"
    " nodes it is their network's bandwidth that counts.",
)


def print_plan(name: str, shape: ModelShape, devices: Sequence[Accelerator], rows: int | None) -> None:
    """Print a plan.

    Args:
        name: Of the spec.
        shape: Of its DLRM.
        devices: To plan for.
        rows: Training rows of an epoch, if known.
    """
    console = Console(width=None if Console().is_terminal else 118)
    parts = _tables(name, shape), _costs(shape), _speeds(shape, devices, rows), _multi_device_rows(shape, devices, rows)
    for part in parts:
        console.print(part)
    wrong = [sentence for device in devices for sentence in unplaceable_tables(shape, device, "bf16")]
    for sentence in [*filter(None, [too_many_ids(shape)]), *wrong]:
        console.print(Text(f"✗ {sentence}", "red"))
    for note in (*_NOTES, *(f"    {device.name}: {device.source}." for device in devices), *shape.assumed):
        console.print(Text(note, "dim"))


def size(number: float) -> str:
    """Return bytes in decimal units.

    >>> size(53_456), size(104.5e9)
    ('53.5 kB', '104.5 GB')
    """
    for unit, worth in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if number >= worth:
            return f"{number / worth:,.1f} {unit}"
    return f"{number:.0f} B"


def _tables(name: str, shape: ModelShape) -> Grid:
    grid = _grid(f"{name}: embedding tables", "table", "rows", "rows are", "width", "bytes", "optimizer state")
    for table in shape.tables:
        row_bytes, state = plan.table_bytes(table, shape.width), plan.state_bytes(table)
        source = Text(_SOURCES[table.source], "yellow" if table.source == "bound" else "")
        grid.add_row(table.name, f"{table.rows:,}", source, str(shape.width), size(row_bytes), size(state))
    total = plan.model_costs(shape)
    grid.add_section()
    bound = any(table.source == "bound" for table in shape.tables)
    grid.add_row(
        f"{len(shape.tables)} tables", f"{sum(table.rows for table in shape.tables):,}", "at most" if bound else "",
        "", size(total.table_bytes), size(total.state_bytes),
    )  # fmt: skip
    return grid


def _costs(shape: ModelShape) -> Grid:
    costs = plan.model_costs(shape)
    grid = _grid("One sample", "", "score", "training step")
    grid.add_row("operations [1]", f"{costs.forward_flops / 1e6:.2f} MFLOP", f"{costs.training_flops / 1e6:.2f} MFLOP")
    grid.add_row("table traffic [2]", size(costs.forward_bytes), size(costs.training_bytes))
    grid.add_section()
    grid.add_row("perceptrons' weights", "", f"{costs.perceptron_weights:,}")
    for precision in ("bf16", "fp32"):
        step = plan.step_bytes(shape, shape.batch, precision)
        grid.add_row(f"memory of a step of {shape.batch:,} rows, {precision} [3]", "", size(step))
    return grid


def _speeds(shape: ModelShape, devices: Sequence[Accelerator], rows: int | None) -> Grid:
    headings = ["device", "precision", "memory roof", "compute roof", "samples/s at most [4]", "expected [5]"]
    grid = _grid("Training on one device", *headings, *([f"epoch of {rows:,} rows"] if rows else []))
    for device in devices:
        for precision in PRECISIONS:
            roofline = plan.roofline(shape, device, precision)
            if roofline is None:
                continue
            expected = f"{roofline.expected / 1e6:,.2f} M" if roofline.expected else "-"
            cells = [
                f"{rows_per_s / 1e6:,.2f} M"
                for rows_per_s in (roofline.memory, roofline.compute, roofline.samples_per_s)
            ]
            epoch = (
                [duration(rows / (roofline.expected or roofline.samples_per_s), roofline.expected is None)]
                if rows
                else []
            )
            grid.add_row(device.name, precision, *cells, expected, *epoch)
    return grid


def duration(seconds: float, at_least: bool) -> str:
    """Return a duration as text.

    >>> duration(5_400, at_least=True)
    'at least 1.5 h'
    """
    text = (
        f"{seconds / 3600:.1f} h"
        if seconds >= 3600
        else f"{seconds / 60:.1f} min"
        if seconds >= 60
        else f"{seconds:.1f} s"
    )
    return f"at least {text}" if at_least else text


def _multi_device_rows(shape: ModelShape, devices: Sequence[Accelerator], rows: int | None) -> Grid:
    headings = ["device", "devices [6]", "exchanged per sample [7]", "by the link", "by the device [5]", "all together"]
    grid = _grid("Our own workers: tables shared by rows", *headings, *([f"epoch of {rows:,} rows"] if rows else []))
    for device in devices:
        number = row_wise_devices(shape, device, "bf16")
        roofline = plan.roofline(shape, device, "bf16")
        if number is None:
            grid.add_row(device.name, Text(f"more than {MAX_DEVICES:,}", "red"))
        if number is None or roofline is None or not device.link:
            continue
        exchanged = plan.exchange_bytes(shape, number)
        by_link = device.link / exchanged if exchanged else float("inf")
        by_device = roofline.expected or roofline.samples_per_s
        together = number * min(by_link, by_device)
        speeds = [
            f"{rows_per_s / 1e6:,.2f} M/s" if rows_per_s < float("inf") else "-"
            for rows_per_s in (by_link, by_device, together)
        ]
        epoch = [duration(rows / together, roofline.expected is None)] if rows else []
        grid.add_row(device.name, str(number), size(exchanged), *speeds, *epoch)
    return grid


def _grid(title: str, *headings: str) -> Grid:
    grid = Grid(title=title, title_justify="left", title_style="bold")
    for number, heading in enumerate(headings):
        grid.add_column(heading, justify="left" if number == 0 or heading == "rows are" else "right")
    return grid


def read_cardinalities(spec: Path, file: Path | None) -> Mapping[str, int]:
    """Return distinct values by column, from a file or from the one beside the spec; empty when there is none.

    Raises:
        ShortlistError: The file does not exist, or is malformed.
    """
    beside = spec.with_suffix(".cardinalities.json")
    if file is None and not beside.is_file():
        return {}
    source = file or beside
    try:
        values = read_json(source)
    except IntegrityError as error:
        if not source.is_file():
            raise ShortlistError(f'--cardinalities: no file {source}; wanted JSON such as {{"C1": 40000000}}') from None
        raise ShortlistError(f"--cardinalities: {error}") from None
    for column, count in values.items():
        if not isinstance(count, int) or isinstance(count, bool) or count < 1:
            raise ShortlistError(f"{source}: '{column}': got {count!r}, wanted a number of distinct values, at least 1")
    return values


def fitted_sizes(runs: Path, names: tuple[str, ...]) -> Mapping[str, int]:
    """Return ids (or a vector's width) by feature, from the newest table below `runs` with exactly these features."""
    tables = sorted((runs / "cache").rglob(Files.TABLE), key=lambda path: path.stat().st_mtime, reverse=True)
    for path in tables:
        columns = _columns(path.parent)
        if tuple(column.name for column in columns) == names:
            return {feature.name: feature.size or feature.width or 1 for feature in columns if feature.kind != "dense"}
    return {}


def _columns(folder: Path) -> tuple[TableFeature, ...]:
    try:
        return features_of(DayTable.open(folder, Files.TABLE))
    except ShortlistError:  # a table of another version, or one that is being replaced
        return ()
