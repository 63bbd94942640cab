"""`objcat store-check`: whether a store is fit for commits."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text

from fileio.check.probe import probe
from fileio.check.report import ProbeReport, ProbeRow, Verdict
from fileio.registry import open_store
from fileio.write_outcomes import RetryPolicy
from objcat.cli.common import EXIT_NO, Json, Option, placed
from objcat.cli.output import draw, say_json, sheet, steps, words

_STYLES = {
    Verdict.KEPT: "green",
    Verdict.IGNORED: "bold red",
    Verdict.REFUSED: "red",
    Verdict.FAILED: "red",
    Verdict.UNSUPPORTED: "dim",
}


def store_check(
    url: Annotated[
        str | None, typer.Argument(help="The store: s3://bucket/prefix, gs://bucket/prefix, az://container/prefix, or a directory.")
    ] = None,
    option: Option = None,
    as_json: Json = False,
) -> None:
    """Check which promises a store keeps, and whether it is fit for commits.

    Writes some hundred small objects below .objcat-check-<id>/ and removes them again. Exit code 0: fit, 1: not fit, 2: it could not be
    asked.
    """
    url, options = placed(url, option)
    policy = RetryPolicy(attempts_max=5, deadline_s=20.0)
    with open_store(url, options, policy=policy) as store, steps(f"checking {store.url}", shown=not as_json) as shown:
        report = probe(store, on_check=lambda row: shown.tell(f"checking {store.url}: {row.check}"))
    if as_json:
        say_json(report.to_dict(), indent=2)
    else:
        _print_report(report)
    if not report.fit:
        raise typer.Exit(EXIT_NO)


def _print_report(report: ProbeReport) -> None:
    table = sheet(f"What {report.url} keeps (* commits rely on it)")
    table.add_column("check", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    table.add_column("what it means, and what was seen", overflow="fold")
    for row in report.rows:
        table.add_row(*_cells(row))
    draw(table)
    draw(words(report.why, style="bold green" if report.fit else "bold red"))


def _cells(row: ProbeRow) -> tuple[Text, Text, Text]:
    said = words(row.meaning)
    if row.detail:
        said.append("\n").append(words(row.detail, style="italic"))
    return words(row.check + (" *" if row.required else "")), words(row.verdict.value, style=_STYLES[row.verdict]), said
