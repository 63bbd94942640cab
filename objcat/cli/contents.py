"""`objcat schema`, `stats`, `files` and `partitions`: what a table is, and what it holds."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any

import msgspec
import pyarrow as pa
import typer
from rich.text import Text

from objcat.cli.common import Json, Option, TableUrl, open_table
from objcat.cli.output import cell, draw, say, say_json, sheet, words
from objcat.common.validation import whole_number
from objcat.inspection.explain import bytes_text
from objcat.metadata.column_defaults import has_defaults, is_said, shown_default
from objcat.metadata.schema import Column, type_text
from objcat.metadata.settings_asked import ordering_asked
from objcat.metadata.watermark import Watermark

Limit = Annotated[int, typer.Option("--limit", help="Show at most this many, the largest ones. 0 shows all. JSON has all of them.")]
LIMIT = 50


def schema(
    url: TableUrl,
    option: Option = None,
    slot: Annotated[int | None, typer.Option("--slot", help="The table as of this slot. Without it, the current one.")] = None,
    as_json: Json = False,
) -> None:
    """Show the columns, key, ordering, partitions, index, table type, properties and buckets of a table."""
    table = open_table(url, option)
    snapshot = table.snapshot if slot is None else table.scan(as_of=slot).plan.snapshot
    spec = snapshot.spec
    key = [column.name for column in spec.key_columns]
    ordering = {column.name for column in spec.ordering_columns}
    columns = [
        {"column": column.name, "type": type_text(column.type), "nullable": column.nullable, "key": column.name in key, **_defaults(column)}
        for column in spec.table_schema.columns
    ]
    index = {name: value for name, value in msgspec.to_builtins(spec.index).items() if name not in ("type", "columns")}
    facts = {
        "slot": snapshot.slot,
        "table_type": spec.table_type,
        "key": key,
        "ordering": ordering_asked(spec),
        **({"deletes_forgotten_below": spec.watermark.value} if isinstance(spec.watermark, Watermark) else {}),
        "partitioned_by": [field.name for field in spec.partitioning.fields],
        "index": {"type": msgspec.to_builtins(spec.index)["type"], **index, "columns": [column.name for column in spec.bucket_columns]},
        "bucket_counts": dict(sorted(snapshot.table.bucket_counts.items())),
        "properties": dict(sorted(spec.properties.items())),
    }
    if as_json:
        say_json({"name": table.name, **facts, "columns": columns})
        return
    shown = sheet(f"{table.name} at slot {snapshot.slot}")
    has_default = has_defaults(spec.table_schema)
    for title in ("column", "type", "null", "key", *(("default", "in older rows") if has_default else ())):
        shown.add_column(title, overflow="fold")
    for column in columns:
        # Rows hold no null there, even if the schema is nullable.
        never = column["key"] or column["column"] in ordering
        null = "yes" if column["nullable"] and not never else "no"
        defaults = [words(shown_default(column.get(name))) for name in ("default", "default_of_older_rows")] if has_default else []
        shown.add_row(words(str(column["column"])), words(str(column["type"])), null, "key" if column["key"] else "", *defaults)
    draw(shown)
    for name, value in facts.items():
        if name != "slot" and value:
            told = ", ".join(f"{k or '(all)'}={v}" for k, v in value.items() if v not in ([], None)) if isinstance(value, dict) else value
            draw(words(f"{name.replace('_', ' ')}: {', '.join(told) if isinstance(told, list) else told}"))


def _defaults(column: Column) -> dict[str, Any]:
    """The defaults of a column, where it has one."""
    said = {"default": column.write_default, "default_of_older_rows": column.initial_default}
    return {name: value for name, value in said.items() if is_said(value)}


def stats(url: TableUrl, option: Option = None, as_json: Json = False) -> None:
    """Show the rows, bytes, files and file groups of a table, from its metadata alone."""
    table = open_table(url, option)
    found = table.inspect.stats()
    if as_json:
        say_json(dataclasses.asdict(found))
        return
    facts = {
        "rows": f"{found.rows:,}" if found.rows_exact else f"at most {found.rows:,}: log rows may replace or delete others",
        "bytes": bytes_text(found.bytes),
        "partitions": f"{found.partitions:,}",
        "file groups": f"{found.groups:,}, of which {found.groups_unmerged:,} have something to merge",
        "base files": f"{found.base_files:,} with {found.base_rows:,} rows in {bytes_text(found.base_bytes)}",
        "log objects": f"{found.log_objects:,} with {found.log_rows:,} rows in {bytes_text(found.log_bytes)}",
    }
    shown = sheet(f"{table.name} at slot {found.slot}", headed=False)
    shown.add_column("what", style="bold", no_wrap=True)
    shown.add_column("is", overflow="fold")
    for name, value in facts.items():
        shown.add_row(words(name), words(value))
    draw(shown)


def files(url: TableUrl, option: Option = None, limit: Limit = LIMIT, as_json: Json = False) -> None:
    """Show the data files of the newest slot. JSON has their bounds too."""
    table = open_table(url, option)
    _show(table.inspect.files().sort_by([("bytes", "descending"), ("path", "ascending")]), f"files of {table.name}", limit, as_json=as_json)


def partitions(url: TableUrl, option: Option = None, limit: Limit = LIMIT, as_json: Json = False) -> None:
    """Show the partitions of a table, with their files, rows and bytes."""
    table = open_table(url, option)
    found = table.inspect.partitions()
    order = [("base_bytes", "descending"), ("partition", "ascending")]
    _show(found.sort_by(order), f"partitions of {table.name}", limit, as_json=as_json)


def _show(rows: pa.Table, title: str, limit: int, *, as_json: bool) -> None:
    whole_number(limit, what="limit")
    if as_json:
        for row in rows.to_pylist():
            say_json({name: dict(value) if isinstance(value, list) else value for name, value in row.items()})
        return
    names = [name for name in rows.column_names if not pa.types.is_map(rows.schema.field(name).type)]
    shown = sheet(title)
    for name in names:
        is_number = pa.types.is_integer(rows.schema.field(name).type)
        shown.add_column(name, justify="right" if is_number else "left", overflow="fold")
    for row in rows.slice(0, limit or rows.num_rows).to_pylist():
        shown.add_row(*(_cell(name, row[name]) for name in names))
    draw(shown)
    left = rows.num_rows - limit
    if limit and left > 0:
        say(f"{left:,} more: --limit 0 shows all")


def _cell(name: str, value: Any) -> Text:
    return words(bytes_text(value)) if name.endswith("bytes") and value is not None else cell(value)
