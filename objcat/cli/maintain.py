"""`objcat maintain`: maintenance of a table or a lake by the properties of the tables, once or repeatedly."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated

import typer

from fileio.env import Env, default_env
from fileio.errors import FileIOError
from objcat.cli.common import EXIT_NO, EXIT_WRONG, Json, Option, placed
from objcat.cli.output import say, say_error, say_json
from objcat.common.validation import seconds
from objcat.errors import InvalidInput, ObjcatError, TableNotFound
from objcat.inspection.verify_files import VERIFIED_BYTES
from objcat.lake.lake import Lake, connect
from objcat.lake.urls import find_table
from objcat.maintenance.maintain import MaintenanceReport
from objcat.maintenance.metrics import prometheus_text, samples_of
from objcat.table.table import Table


def maintain(  # noqa: PLR0913, PLR0917 - typer makes an option of each
    url: Annotated[str | None, typer.Argument(help="The URL of a lake, or of a table in it: lake, slash, name.")] = None,
    option: Option = None,
    io_bytes: Annotated[
        int | None, typer.Option("--io-bytes", help="The most bytes that compactions read and write, over all tables.")
    ] = None,
    within: Annotated[float | None, typer.Option("--within", metavar="SECONDS", help="Start nothing after this many seconds.")] = None,
    verify_bytes: Annotated[
        int | None, typer.Option("--verify-bytes", help="About how many bytes of each table to compare with their digests. 0 checks none.")
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Repeat until you stop the command.")] = False,
    every: Annotated[float, typer.Option("--every", metavar="SECONDS", help="The pause between two rounds of --watch.")] = 60,
    metrics: Annotated[bool, typer.Option("--metrics", help="Print metrics in the text format of Prometheus, and change nothing.")] = False,
    as_json: Json = False,
) -> None:
    """Refresh derived tables and run the table services that are due: settle dead writers, compact, split, clean, archive, collect, verify.

    The properties of each table say what is due. It is safe while others read and write, and on several machines at once. You may stop
    it at any time. Exit code 1: a service failed, or a file is damaged.
    """
    url, options = placed(url, option)
    seconds(every, what="every")
    lake = lake_at(url, options)
    if metrics:
        tables = [find_table(url, options)] if lake is None else [lake.table(name) for name in lake.tables()]
        _print_metrics(tables, lake, verify_bytes or 0, as_json=as_json)
        return
    env: Env = default_env()
    verified = VERIFIED_BYTES if verify_bytes is None else verify_bytes
    while True:
        failed = False
        try:
            if lake is None:
                done = [find_table(url, options).maintenance.run(io_bytes_max=io_bytes, seconds_max=within, verify_bytes_max=verified)]
            else:
                done = lake.maintain(io_bytes_max=io_bytes, seconds_max=within, verify_bytes_max=verified)
            failed = _print(done, as_json=as_json)
        except (ObjcatError, FileIOError) as error:
            if not watch:
                raise
            # The next round tries again.
            say_error(type(error).__name__, str(error), EXIT_WRONG)
        if not watch:
            break
        sys.stdout.flush()
        env.sleep(every)
    if failed:
        raise typer.Exit(EXIT_NO)


def _print_metrics(tables: Sequence[Table], lake: Lake | None, verify_bytes: int, *, as_json: bool) -> None:
    found = [
        sample
        for table in tables
        for sample in (
            *samples_of(table._context.timeline, table.id, name=table.name, verify_bytes_max=verify_bytes),
            *(() if lake is None else lake._lag_samples(table)),
        )
    ]
    if not as_json:
        for line in prometheus_text(found).removesuffix("\n").split("\n"):
            say(line)
        return
    for sample in found:
        say_json({"metric": sample.metric, "labels": dict(sample.labels), "value": sample.value})


def lake_at(url: str, options: dict[str, str]) -> Lake | None:
    """The lake at a URL; None when the URL is of a table. Raises as `connect`, and TableNotFound where there is neither."""
    lake = connect(url, options)
    if lake.tables():
        return lake
    try:
        find_table(url, options)
    except (TableNotFound, InvalidInput) as error:
        if lake._context.catalog.slot < 0:
            neither = TableNotFound(f"There is neither a lake nor a table at {lake.fileio.url}. Correct the URL, or create a table there.")
            raise (neither if isinstance(error, InvalidInput) else error) from None
        # An empty URL is an empty lake, and is reported as such.
        return lake
    return None


def _print(done: Sequence[MaintenanceReport], *, as_json: bool) -> bool:
    """Print the reports. Returns whether a service failed."""
    for maintained in done:
        if as_json:
            say_json(asdict(maintained))
            continue
        for step in maintained.steps:
            at = "" if step.slot is None else f", slot {step.slot}"
            size = f", {step.bytes:,} bytes written" if step.bytes else ""
            say(f"{maintained.table}: {step.service} {'done' if step.done else 'left'}{at}{size}: {step.why}")
    if not as_json and not any(maintained.steps for maintained in done):
        say("nothing is due" if done else "there are no tables")
    files, size = (sum(getattr(maintained, name) for maintained in done) for name in ("verified_files", "verified_bytes"))
    if not as_json and files:
        say(f"{files:,} files were verified, {size:,} bytes")
    return any(step.failed for maintained in done for step in maintained.steps)
