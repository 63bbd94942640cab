"""`objcat query` and `objcat export`: the rows of tables."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, Protocol

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import typer

from objcat.cli.common import Json, LakeUrl, Option, TableUrl, is_place, open_lake, open_table
from objcat.cli.output import draw, json_text, progress, say, say_json, sheet, words
from objcat.cli.profiles import chosen
from objcat.cli.report import check_target
from objcat.common.validation import one_of, whole_number
from objcat.errors import InvalidInput
from objcat.sql.context import Context
from objcat.sql.duckdb_runner import LocalRunner
from objcat.sql.statements import run_reading

LIMIT = 50
ROW_GROUP_BYTES = 64 * 1024 * 1024
FORMATS = {".parquet": "parquet", ".csv": "csv", ".json": "json", ".jsonl": "json", ".ndjson": "json"}
"""Formats by the end of a file name."""


def query(
    url: LakeUrl = None,
    sql: Annotated[str | None, typer.Argument(help='A SELECT, SHOW or DESCRIBE: "SELECT count(*) FROM city.trips".', metavar="SQL")] = None,
    option: Option = None,
    limit: Annotated[int, typer.Option("--limit", help="Show at most this many rows. 0 shows all. JSON has all of them.")] = LIMIT,
    as_json: Json = False,
) -> None:
    """Run one SQL query over the tables of a lake, with DuckDB in this process. It only reads.

    `orders VERSION AS OF 7` reads an earlier slot.

    Files and columns that the query does not need are not read. JSON is one object a row.
    """
    if sql is None and url is not None and chosen.get() is not None and not is_place(url):
        url, sql = None, url
    if sql is None:
        raise InvalidInput(
            'There is no query in the call. Write it after the lake: objcat query s3://bucket/lake "SELECT count(*) FROM city.trips"'
        )
    whole_number(limit, what="limit")
    with progress("asking", shown=not as_json):
        found = run_reading(sql, Context(open_lake(url, option), LocalRunner()))
        batches = iter(found if isinstance(found, pa.RecordBatchReader) else found.to_batches())
        first = list(_until(batches, limit + 1)) if limit and not as_json else []
    if as_json:
        for batch in batches:
            for row in batch.to_pylist():
                say_json(row)
        return
    rows = pa.Table.from_batches([*first] if limit else batches, schema=found.schema)
    _show(rows.slice(0, limit or rows.num_rows))
    if limit and rows.num_rows > limit:
        say(f"more than {limit:,} rows: --limit 0 shows all, `objcat export` writes a table to a file")


def _until(batches: Iterable[pa.RecordBatch], rows_max: int) -> Iterator[pa.RecordBatch]:
    """Batches until there are so many rows."""
    seen = 0
    for batch in batches:
        yield batch
        seen += batch.num_rows
        if seen >= rows_max:
            return


def _show(rows: pa.Table) -> None:
    shown = sheet()
    for field in rows.schema:
        is_number = pa.types.is_integer(field.type) or pa.types.is_floating(field.type) or pa.types.is_decimal(field.type)
        shown.add_column(words(field.name), justify="right" if is_number else "left", overflow="fold")
    for row in rows.to_pylist():
        shown.add_row(*(words("null", style="dim") if value is None else words(_text(value)) for value in row.values()))
    draw(shown)
    say(f"{rows.num_rows:,} rows")


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json_text(value).strip('"')


def export(  # noqa: PLR0913, PLR0917 - one for each option
    url: TableUrl,
    file: Annotated[str, typer.Argument(help="The file to write, which ends in .parquet, .csv or .jsonl. - means standard output.")],
    option: Option = None,
    format_name: Annotated[
        str | None, typer.Option("--format", help="parquet, csv or jsonl (one row per line). Without it, the name of the file decides.")
    ] = None,
    where: Annotated[str | None, typer.Option("--where", help="Only rows that pass this filter: \"city = 'Rome'\".")] = None,
    columns: Annotated[str | None, typer.Option("--columns", help="Only these columns, separated by commas: id,fare.")] = None,
    slot: Annotated[int | None, typer.Option("--slot", help="The table as of this slot. Without it, the current one.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing file.")] = False,
    as_json: Json = False,
) -> None:
    """Write the rows of a table to one file.

    The rows are streamed, so memory does not grow with the table. The file appears when it is complete.
    """
    chosen_format = _format_of(file, format_name)
    target = None if file == "-" else Path(file)
    if target is not None:
        check_target(target, overwrite=overwrite)
    table = open_table(url, option)
    named = None if columns is None else [name.strip() for name in columns.split(",")]
    scan = table.scan(where=where, columns=named, as_of=slot)
    with progress(f"exporting {table.name}", shown=not as_json):
        rows = _write(scan.to_batches(), target, chosen_format)
    if target is None:
        return
    if as_json:
        say_json({"file": file, "format": chosen_format, "slot": scan.plan.snapshot.slot, "rows": rows, "bytes": target.stat().st_size})
    else:
        say(f"{rows:,} rows of {table.name} at slot {scan.plan.snapshot.slot} are in {file}")


def _format_of(file: str, given: str | None) -> str:
    if given is not None:
        found = FORMATS[f".{one_of(given, [suffix[1:] for suffix in FORMATS], what='format')}"]
    elif file != "-" and Path(file).suffix.lower() in FORMATS:
        found = FORMATS[Path(file).suffix.lower()]
    else:
        raise InvalidInput(f"{file!r} does not name a format. End it with .parquet, .csv or .jsonl, or give --format.")
    if file == "-" and found == "parquet":
        raise InvalidInput("Parquet cannot be written to standard output. Name a file, or give --format csv or jsonl.")
    return found


class _ShownRows(Protocol):
    """Writes batches in one format."""

    def write(self, batch: pa.RecordBatch) -> None: ...
    def close(self) -> None: ...


def _write(reader: pa.RecordBatchReader, target: Path | None, format_name: str) -> int:
    """Write all batches to a temporary file next to the target, which gets its name when it is complete. Returns the number of rows."""
    part = None if target is None else target.with_name(f".{target.name}.{os.getpid()}.part")
    count = 0
    try:
        with contextlib.ExitStack() as stack:
            sink = _Output() if part is None else stack.enter_context(_opened(part))
            rows = _rows_of(format_name, sink, reader.schema)
            for batch in reader:
                rows.write(batch)
                count += batch.num_rows
            rows.close()
        if part is not None and target is not None:
            part.replace(target)
    except OSError as error:
        if target is None:
            raise
        raise InvalidInput(f"{target} cannot be written ({error.strerror or error}). Free some space, or choose another folder.") from error
    finally:
        if part is not None:
            part.unlink(missing_ok=True)
    return count


def _opened(part: Path) -> Any:
    try:
        return part.open("wb")
    except OSError as error:
        raise InvalidInput(f"{part.parent} is not writable ({error.strerror}). Create that folder, or name another one.") from error


def _rows_of(format_name: str, sink: Any, schema: pa.Schema) -> _ShownRows:
    match format_name:
        case "parquet":
            return _Parquet(sink, schema)
        case "csv":
            try:
                writer: _ShownRows = pa_csv.CSVWriter(sink, schema)
                return writer
            except pa.ArrowException as error:
                raise InvalidInput(
                    f"CSV cannot hold a column of the table ({error}). Leave it out with --columns, or choose another format."
                ) from error
        case _:
            return _JsonLines(sink)


class _Parquet:
    """Parquet with row groups of some size, because a stream has small batches."""

    def __init__(self, sink: Any, schema: pa.Schema) -> None:
        self._writer = pq.ParquetWriter(sink, schema, compression="zstd")
        self._schema = schema
        self._waiting: list[pa.RecordBatch] = []

    def write(self, batch: pa.RecordBatch) -> None:
        self._waiting.append(batch)
        if sum(one.nbytes for one in self._waiting) >= ROW_GROUP_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._waiting:
            self._writer.write_table(pa.Table.from_batches(self._waiting, schema=self._schema))
            self._waiting = []

    def close(self) -> None:
        self._flush()
        self._writer.close()


class _JsonLines:
    def __init__(self, sink: Any) -> None:
        self._sink = sink

    def write(self, batch: pa.RecordBatch) -> None:
        self._sink.write("".join(f"{json_text(row)}\n" for row in batch.to_pylist()).encode())

    def close(self) -> None: ...


class _Output:
    """Standard output, as a file of bytes."""

    closed = False

    def write(self, data: Any) -> int:
        sys.stdout.write(bytes(data).decode())
        return len(data)

    def flush(self) -> None:
        sys.stdout.flush()

    def close(self) -> None:
        self.flush()
