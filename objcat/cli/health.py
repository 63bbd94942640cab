"""`objcat doctor` and `objcat rollback`: is a table whole, and what to do about writers that died."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table as Shown
from rich.text import Text

from objcat.cli.common import EXIT_NO, Json, Option, TableUrl, open_table
from objcat.doctor import Report, Severity, examine
from objcat.timeline import CommittedAt


def doctor(
    url: TableUrl,
    option: Option = None,
    deep: Annotated[bool, typer.Option("--deep", help="Read every row too.")] = False,
    as_json: Json = False,
) -> None:
    """Examine a table: do the promises of the commit protocol hold, is every file there. Changes nothing.

    Exit code 0: all holds, 1: something is broken; each finding says what mends it.
    """
    table = open_table(url, option)
    if as_json:
        report = examine(table.timeline, deep=deep)
        print(
            json.dumps(
                {"url": report.url, "healthy": report.healthy, "looked_at": report.counts, "findings": [asdict(f) for f in report.findings]}
            )
        )
    else:
        with Console(stderr=True).status(f"examining {table.fileio.url}") as status:
            report = examine(table.timeline, deep=deep, on_step=lambda what: status.update(f"examining {what}"))
        _print_report(report)
    if not report.healthy:
        raise typer.Exit(EXIT_NO)


def rollback(
    url: TableUrl,
    txn: Annotated[str, typer.Argument(help="The transaction to settle.")],
    option: Option = None,
) -> None:
    """Settle a transaction whose writer died: committed, or rolled back for ever, its files removed.

    Safe beside the writer, should it still live: it is refused then, and says so.
    """
    table = open_table(url, option)
    outcome = table.resolve(txn)
    if isinstance(outcome, CommittedAt):
        print(f"{txn} is committed at slot {outcome.slot}")
    else:
        print(f"{txn} is rolled back at slot {outcome.slot}; {outcome.files} files were removed")


def _print_report(report: Report) -> None:
    console = Console()
    if report.findings:
        shown = Shown(title=f"findings in {report.url}", title_justify="left", box=box.SIMPLE)
        for title in ("", "what", "what was found, and what mends it"):
            shown.add_column(title, overflow="fold")
        for finding in report.findings:
            style = "bold red" if finding.severity is Severity.BROKEN else "dim"
            said = Text(f"{finding.says}\n").append(finding.remedy, style="italic")
            shown.add_row(Text(f"{finding.invariant} {finding.severity}", style=style), Text(finding.subject), said)
        console.print(shown)
    looked = ", ".join(f"{count:,} {what}" for what, count in report.counts.items())
    verdict = "every invariant holds" if report.healthy else "the table is not whole"
    console.print(Text(f"{verdict} ({looked})", style="bold green" if report.healthy else "bold red"), soft_wrap=True)
