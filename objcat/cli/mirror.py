"""`objcat mirror`: bring the mirrors of a table, or of all tables of a lake, up to their newest slots, once or repeatedly."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated

import typer

from fileio.env import default_env
from fileio.errors import FileIOError
from objcat.cli.common import EXIT_NO, EXIT_WRONG, Json, Option, placed
from objcat.cli.maintain import lake_at
from objcat.cli.output import say, say_error, say_json
from objcat.common.validation import seconds
from objcat.errors import ObjcatError
from objcat.lake.urls import find_table
from objcat.mirror.mirror import MirrorReport
from objcat.table.table import Table


def mirror(
    url: Annotated[str | None, typer.Argument(help="The URL of a lake, or of a table in it: lake, slash, name.")] = None,
    option: Option = None,
    watch: Annotated[bool, typer.Option("--watch", help="Repeat until you stop the command.")] = False,
    every: Annotated[float, typer.Option("--every", metavar="SECONDS", help="The pause between two rounds of --watch.")] = 5,
    as_json: Json = False,
) -> None:
    """Bring the Iceberg and Delta mirrors of tables up to their newest slots, so that other engines see them.

    The property mirrors of a table names its mirrors. Writers do the same after each commit. It is safe while others write, and on several
    machines at once. You may stop it at any time. Exit code 1: a mirror failed or cannot go on.
    """
    url, options = placed(url, option)
    seconds(every, what="every")
    lake = lake_at(url, options)
    opened: dict[str, Table] = {}
    env = default_env()
    while True:
        names = [url] if lake is None else lake.tables()
        failed = False
        for name in names:
            try:
                # A handle remembers what its mirrors hold.
                table = opened[name] if name in opened else find_table(url, options) if lake is None else lake.table(name)
                opened[name] = table
                failed |= _print(table.name, table.maintenance.mirror(), as_json=as_json, quiet=watch)
            except (ObjcatError, FileIOError) as error:
                if not watch and lake is None:
                    raise
                opened.pop(name, None)
                say_error(type(error).__name__, f"{name}: {error}", EXIT_WRONG)
                failed = True
        if not watch:
            break
        sys.stdout.flush()
        env.sleep(every)
    if failed:
        raise typer.Exit(EXIT_NO)


def _print(table: str, reports: Sequence[MirrorReport], *, as_json: bool, quiet: bool) -> bool:
    """Print reports. Returns whether a mirror cannot go on. quiet: leave out those that had nothing to do."""
    for report in reports:
        if quiet and not report.written and not report.held:
            continue
        if as_json:
            say_json({"table": table, **asdict(report)})
        else:
            held = f". It cannot go on: {report.held}" if report.held else ""
            say(f"{table}: {report.format} is at slot {report.slot}, {report.lag:,} behind; {report.written:,} slots were mirrored{held}")
    if not reports and not quiet and not as_json:
        say(f"{table}: no mirrors; set the property mirrors to iceberg, delta or iceberg,delta")
    return any(report.held for report in reports)
