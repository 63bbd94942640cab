"""What a notebook shows of a table and of a scan: HTML that loads and runs nothing, in which every text is escaped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

import pyarrow as pa

from objcat.common.terminal import visible
from objcat.inspection.history import CommitHistory
from objcat.metadata.column_defaults import is_said, shown_default
from objcat.metadata.schema import Column, type_text
from objcat.metadata.table_spec import TableSpec

PREVIEW_ROWS = 10
"""Rows of a scan that a notebook shows."""
SHOWN_COMMITS = 5
"""Commits of a table that a notebook shows."""
VALUE_CHARACTERS_MAX = 80
_COMMIT_COLUMNS = ["slot", "committed_at", "action", "rows", "inserted", "updated", "deleted"]


def rows_html(title: str, rows: pa.Table, *, is_whole: bool) -> str:
    """A preview of rows: the columns, their types, and the rows.

    Args:
        title: What the rows are of.
        rows: The rows to show.
        is_whole: Whether there are no more rows.

    Returns:
        A fragment of HTML.
    """
    shown = f"{rows.num_rows:,} rows" if is_whole else f"the first {rows.num_rows:,} rows"
    return f"<div><b>{_text(title)}</b>{_arrow_table(rows)}<small>{shown}</small></div>"


def table_html(title: str, facts: Sequence[tuple[str, object]], spec: TableSpec, commits: CommitHistory) -> str:
    """What a table is: its settings, its columns, and its newest commits.

    Args:
        title: Which table it is.
        facts: The settings, as name and value. Those without a value are left out.
        spec: The columns.
        commits: The newest commits, oldest first.

    Returns:
        A fragment of HTML.
    """
    settings = [[f"<b>{_text(name)}</b>", _text(value)] for name, value in facts if value not in (None, "", [], {})]
    keys = {column.name for column in spec.key_columns}
    columns = [
        [_text(column.name), _text(type_text(column.type)), _text(_facts(column, is_key=column.name in keys))]
        for column in spec.table_schema.columns
    ]
    parts = [_table([], settings), _table(["column", "type", ""], columns), _arrow_table(commits.to_arrow().select(_COMMIT_COLUMNS))]
    return f"<div><b>{_text(title)}</b>{''.join(parts)}</div>"


def _facts(column: Column, *, is_key: bool) -> str:
    said = "key" if is_key else "" if column.nullable else "not null"
    default = f"default {shown_default(column.write_default)}" if is_said(column.write_default) else ""
    return ", ".join(filter(None, (said, default)))


def _arrow_table(rows: pa.Table) -> str:
    heads = [f"{_text(field.name)}<br><small>{_text(field.type)}</small>" for field in rows.schema]
    columns = [[_shortened(value) for value in column.to_pylist()] for column in rows.columns]
    return _table(heads, zip(*columns, strict=True))


def _table(heads: Iterable[str], body: Iterable[Iterable[str]]) -> str:
    head = "".join(f"<th>{cell}</th>" for cell in heads)
    rows = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in body)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"


def _shortened(value: object) -> str:
    text = "null" if value is None else str(value)
    return _text(text if len(text) <= VALUE_CHARACTERS_MAX else f"{text[:VALUE_CHARACTERS_MAX]}…")


def _text(value: object) -> str:
    return escape(visible(str(value)))
