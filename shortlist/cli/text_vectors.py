"""`shortlist text-vectors`: vectors of the texts in a table, by the user's own model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

commands = typer.Typer()


@commands.command("text-vectors")
def text_vectors(
    table: Annotated[Path, typer.Argument(help="Parquet, CSV or TSV with one row per item or user.")],
    key: Annotated[str, typer.Option(help="Column that names the item or user.")],
    column: Annotated[str, typer.Option(help="Column of the texts.")],
    model: Annotated[Path, typer.Option(help="ONNX file: texts in, shape (rows,) or (rows, 1); vectors out.")],
    out: Annotated[Path, typer.Option(help="Folder to write.")],
    batch_rows: Annotated[int, typer.Option(min=1, help="Texts that the model gets at once.")] = 256,
) -> None:
    """Write the vectors of a column's texts as a side table."""
    from shortlist.data.side_tables.text_vectors import VECTORS, write_text_vectors

    written = write_text_vectors(table, key, column, model, out, batch_rows)
    typer.echo(
        f"{out / VECTORS}: {written.rows:,} rows, vectors of {written.width} numbers; {written.computed:,} texts"
        f" computed, {written.without_text:,} rows without a text"
    )
    typer.echo(f"Declare a side table with key: {key} and the column {{name: {column}_vector, type: vector}}")
