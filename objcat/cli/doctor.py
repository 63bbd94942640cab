"""`objcat doctor` and `objcat rollback`: check a lake, and settle the writes of dead writers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Annotated

import typer

from objcat.cli.common import EXIT_NO, DryRun, Json, Option, TableUrl, open_table, placed
from objcat.cli.output import draw, progress, say, say_json, sheet, steps, words
from objcat.inspection.doctor import examine, examine_lake
from objcat.inspection.findings import Coverage, DoctorReport, Severity
from objcat.lake.lake import connect
from objcat.lake.urls import find_log, split_url
from objcat.metadata.files import files_named_by
from objcat.table.table import Table
from objcat.timeline.dead_writers import find_leftovers
from objcat.timeline.entry import parse_txn
from objcat.timeline.rollback import CommittedAt, Resolution, RolledBackAt


def doctor(
    url: Annotated[str | None, typer.Argument(help="The URL of a lake, or of a table in it: lake, slash, name.", metavar="URL")] = None,
    option: Option = None,
    deep: Annotated[bool, typer.Option("--deep", help="Also read every row.")] = False,
    as_json: Json = False,
) -> None:
    """Check a table, or all tables of a lake: the rules of the commit protocol, and that every file exists. Changes nothing.

    Exit code 0: no finding. Exit code 1: there are findings, each with its remedy. With `--json` it prints one object for each log.
    """
    url, options = placed(url, option)
    healthy = True
    with steps("examining", shown=not as_json) as shown:
        for report in _reports(url, options, deep=deep, tell=lambda what: shown.tell(f"examining {what}")):
            healthy = healthy and report.healthy
            if as_json:
                findings = [asdict(finding) for finding in report.findings]
                said = {
                    "url": report.url,
                    "tables": report.tables,
                    "healthy": report.healthy,
                    "looked_at": report.counts,
                    "findings": findings,
                }
                say_json({**said, "invariants": report.coverage})
            else:
                with shown.away():
                    _print_report(report)
    if not healthy:
        raise typer.Exit(EXIT_NO)


def _reports(url: str, options: dict[str, str], *, deep: bool, tell: Callable[[str], None]) -> Iterator[DoctorReport]:
    lake = connect(url, options)
    lake._context.catalog.refresh()
    if lake._context.catalog.slot < 0:
        yield examine(find_log(url, options), deep=deep, tables=[split_url(url)[1]], on_step=tell)
        return
    yield from examine_lake(lake.fileio, deep=deep, catalog=lake._context.catalog, on_step=tell)


def rollback(
    url: TableUrl,
    txn: Annotated[str | None, typer.Argument(help="The transaction to settle. Without it, all whose writers are silent.")] = None,
    option: Option = None,
    older_than: Annotated[
        float, typer.Option("--older-than", metavar="SECONDS", help="How long a writer must have been silent to count as dead.")
    ] = 3600,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Settle transactions whose writer died: each is committed, or rolled back and its files deleted.

    A writer that still runs is fenced: its commit is refused. With `--json` it prints one object for each transaction.
    """
    table = open_table(url, option)
    if dry_run:
        _would_roll_back(table, txn, older_than, as_json=as_json)
        return
    if txn is not None:
        _print_outcome(txn, table.resolve(txn), as_json=as_json)
        return
    with progress(f"looking for what dead writers of {table.name} left", shown=not as_json):
        swept = table.maintenance.rollback_failed_writes(older_than_s=older_than)
    for one in swept:
        _print_outcome(one.txn, one.outcome, files=one.files, as_json=as_json)
    if not swept and not as_json:
        say("nothing to settle, and nothing left over")


def _would_roll_back(table: Table, txn: str | None, older_than_s: float, *, as_json: bool) -> None:
    """Print what a rollback would do; a named transaction at any age."""
    named = None if txn is None else parse_txn(txn)
    left = find_leftovers(
        table._context.timeline, table._context.timeline.open(), older_than_s=older_than_s if named is None else 0, names_of=files_named_by
    )
    chosen = [one for one in left if named in (None, one.txn)]
    for one in chosen:
        if as_json:
            say_json({"dry_run": True, **asdict(one)})
            continue
        fate = "would be rolled back" if one.slot is None else f"is {'committed' if one.committed else 'rolled back'} at slot {one.slot}"
        say(f"{one.txn} {fate}; {len(one.files):,} files of it would be deleted")
    if not as_json:
        say("nothing was changed" if chosen else "nothing to settle, and nothing left over")


def _print_outcome(txn: str, outcome: Resolution, *, files: int | None = None, as_json: bool) -> None:
    if as_json:
        deleted = outcome.files if files is None and isinstance(outcome, RolledBackAt) else files or 0
        say_json({"txn": txn, "committed": isinstance(outcome, CommittedAt), "slot": outcome.slot, "files": deleted})
    elif isinstance(outcome, CommittedAt):
        say(f"{txn} is committed at slot {outcome.slot}{f'; {files} leftovers were removed' if files else ''}")
    else:
        say(f"{txn} is rolled back at slot {outcome.slot}; {outcome.files} files were removed")


def _print_report(report: DoctorReport) -> None:
    of = ", ".join(report.tables) or "the names of the lake"
    if report.findings:
        shown = sheet(f"findings in {of} at {report.url}")
        for title in ("", "what", "what was found, and what mends it"):
            shown.add_column(title, overflow="fold")
        for finding in report.findings:
            style = "bold red" if finding.severity is Severity.BROKEN else "dim"
            said = words(finding.says).append("\n").append(words(finding.remedy, style="italic"))
            shown.add_row(words(f"{finding.invariant} {finding.severity}", style=style), words(finding.subject), said)
        draw(shown)
    looked = ", ".join(f"{count:,} {what}" for what, count in report.counts.items())
    verdict = "what was examined holds" if report.healthy else "the table is not whole"
    draw(words(f"{of}: {verdict} ({looked})", style="bold green" if report.healthy else "bold red"))
    for coverage in Coverage:
        which = [name for name, found in report.coverage.items() if found is coverage]
        if which:
            draw(words(f"{coverage}: {', '.join(which)}", style="dim"))
    if report.coverage["P9"] is Coverage.IN_PART:
        says = "rows were not read: one in a wrong bucket or partition, a key that is there twice and a byte that changed show with --deep"
        draw(words(says, style="dim"))
