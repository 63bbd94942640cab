"""`objcat ls`: the tables and namespaces of a lake."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from objcat.cli.common import Json, LakeUrl, Option, is_place, open_lake
from objcat.cli.output import cell, draw, instant_text, say, say_json, sheet, time_text
from objcat.cli.profiles import chosen
from objcat.lake.lake import Lake


def ls(
    url: LakeUrl = None,
    namespace: Annotated[str | None, typer.Argument(help="Only tables in this namespace, or below it.")] = None,
    option: Option = None,
    dropped: Annotated[bool, typer.Option("--dropped", help="Show dropped tables that can be restored, instead.")] = False,
    as_json: Json = False,
) -> None:
    """Show the tables of a lake with their ids and prefixes, and namespaces without tables."""
    if url is not None and namespace is None and chosen.get() is not None and not is_place(url):
        url, namespace = None, url
    lake = open_lake(url, option)
    rows = _dropped(lake, namespace, told=instant_text if as_json else time_text) if dropped else _tables(lake, namespace)
    if as_json:
        for row in rows:
            say_json(row)
        return
    what = "dropped tables" if dropped else "tables"
    if not rows:
        new = "" if lake._context.catalog.slot >= 0 else ": nothing was created there yet, or it is another URL"
        say(f"no {what} in {lake.fileio.url}{f', namespace {namespace}' if namespace else ''}{new}")
        return
    shown = sheet(f"{what} in {lake.fileio.url}")
    for title in rows[0]:
        shown.add_column(title.replace("_", " "), overflow="fold")
    for row in rows:
        shown.add_row(*map(cell, row.values()))
    draw(shown)


def _tables(lake: Lake, namespace: str | None) -> list[dict[str, str]]:
    tables = lake.tables(namespace)
    found = []
    for name in tables:
        bound = lake._context.catalog.names.table(name)
        if bound is not None:
            found.append({"name": name, "id": bound.binding.table, "prefix": bound.binding.prefix, "shared_log": bound.binding.shared_log})
    empty = [name for name in lake.namespaces.list(namespace) if not any(table.startswith(f"{name}.") for table in tables)]
    return found + [{"name": f"{name}.", "id": "", "prefix": "", "shared_log": ""} for name in empty]


def _dropped(lake: Lake, namespace: str | None, *, told: Callable[[int], str]) -> list[dict[str, str]]:
    """The dropped tables. `told`: formats a time."""
    return [
        {"name": table.name, "id": table.table, "prefix": table.binding.prefix, "dropped_at": told(table.at_ms)}
        for table in lake.dropped_tables(namespace)
    ]
