"""The command line: `objcat store-check URL`, `objcat log URL`.

Exit codes: 0 all is well; 1 the answer is no (a store that is not fit); 2 wrong input, missing credentials, or a store that cannot be
asked. Errors are one sentence on stderr.
"""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fileio import FileIOError, InvalidConfig, RetryPolicy, open_store
from fileio.probe import ProbeReport, ProbeRow, Verdict, probe
from objcat.errors import ObjcatError
from objcat.lake import connect
from objcat.table import BaseFile, LogObject, TableDelta
from objcat.table.files import decode_delta
from objcat.timeline import Entry

EXIT_NO = 1
EXIT_WRONG = 2
WIDE_COLUMNS = 130
"""Width of a terminal from which on `log` shows files and transaction ids too; `--json` always does."""

app = typer.Typer(name="objcat", no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)

_STYLES = {
    Verdict.KEPT: "green",
    Verdict.IGNORED: "bold red",
    Verdict.REFUSED: "red",
    Verdict.FAILED: "red",
    Verdict.UNSUPPORTED: "dim",
}


@app.callback()
def _objcat() -> None:
    """Lakehouse tables on a bucket and nothing else."""


@app.command("store-check")
def store_check(
    url: Annotated[str, typer.Argument(help="The store: s3://bucket/prefix, gs://bucket/prefix, az://container/prefix, or a directory.")],
    option: Annotated[
        list[str] | None, typer.Option("--option", "-o", metavar="KEY=VALUE", help="An option of the store; may be repeated.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Look at what a store keeps and what it silently ignores, and say whether it is fit for commits.

    Writes some hundred small objects below .objcat-check-<id>/ and removes them again. Exit code 0: fit, 1: not fit, 2: it could not be
    asked.
    """
    options = parse_option_arguments(option or [])
    policy = RetryPolicy(attempts_max=5, deadline_s=20.0)
    with open_store(url, options, policy=policy) as store:
        if as_json:
            report = probe(store)
        else:
            with Console(stderr=True).status(f"checking {store.url}") as status:
                report = probe(store, on_check=lambda row: status.update(f"checking {store.url}: {row.check}"))
    if as_json:
        print(json.dumps(report.to_dict(), indent=2))
    else:
        _print_report(report)
    if not report.fit:
        raise typer.Exit(EXIT_NO)


@app.command("log")
def log(
    url: Annotated[str, typer.Argument(help="The table: the URL of its lake, a slash, and its name, e.g. s3://bucket/lake/city.trips.")],
    option: Annotated[
        list[str] | None, typer.Option("--option", "-o", metavar="KEY=VALUE", help="An option of the store; may be repeated.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object a commit.")] = False,
) -> None:
    """Show the commits of a table, oldest first: slot, action, time, what was written, and the metadata given with it."""
    lake, _, name = url.rstrip("/").rpartition("/")
    if not lake:
        raise InvalidConfig(f"{url!r} names no table: write the URL of the lake, a slash, and the table's name")
    table = connect(lake, parse_option_arguments(option or [])).table(name)
    rows = [commit_row(entry, table.spec.table) for entry in table.history()]
    if as_json:
        for row in rows:
            print(json.dumps(row))
        return
    console = Console()
    shown = Table(title=f"{name} in {lake}", title_justify="left", box=box.SIMPLE)
    columns = {"slot": "slot", "action": "action", "committed_at": "committed (UTC)", "rows": "rows", "bytes": "bytes"}
    columns |= {"files": "files", "txn": "txn"} if console.width >= WIDE_COLUMNS else {}
    for key, title in columns.items():
        shown.add_column(title, justify="right" if key in ("slot", "rows", "files", "bytes") else "left", no_wrap=True)
    shown.add_column("metadata", overflow="fold")
    for row in rows:
        shown.add_row(*(_text(row[key]) for key in (*columns, "metadata")))
    console.print(shown)


def commit_row(entry: Entry, table: str) -> dict[str, Any]:
    """What one commit did to a table, for people: rows as written (a key that was there counts too), files and bytes of data."""
    delta = decode_delta(entry.changes[table]) if table in entry.changes else TableDelta()
    files: list[BaseFile | LogObject] = [*delta.bases, *delta.logs]
    return {
        "slot": entry.slot,
        "action": str(entry.action),
        "committed_at": datetime.fromtimestamp(entry.committed_at_ms / 1000, UTC).isoformat(sep=" ", timespec="seconds")[:-6],
        "rows": sum(file.rows for file in files),
        "files": len(files),
        "bytes": sum(file.bytes for file in files),
        "txn": entry.txn,
        "metadata": entry.metadata if entry.rollback_of is None else {**entry.metadata, "rollback of": entry.rollback_of},
    }


def _text(value: Any) -> Text:
    if isinstance(value, dict):
        return Text(", ".join(f"{key}={text}" for key, text in value.items()))
    return Text(f"{value:,}" if isinstance(value, int) else str(value))


def parse_option_arguments(arguments: list[str]) -> dict[str, str]:
    """Options of a store from arguments of the form `key=value`. Raises InvalidConfig without repeating values: they may be secret."""
    options: dict[str, str] = {}
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if not key or not equals:
            raise InvalidConfig("an option needs the form KEY=VALUE, for example --option region=eu-central-1")
        options[key] = value
    return options


def _print_report(report: ProbeReport) -> None:
    console = Console()
    table = Table(title=f"What {report.url} keeps (* commits rely on it)", title_justify="left", box=box.SIMPLE)
    table.add_column("check", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    table.add_column("what it means, and what was seen", overflow="fold")
    for row in report.rows:
        table.add_row(*_cells(row))
    console.print(table)
    console.print(Text(report.why, style="bold green" if report.fit else "bold red"), soft_wrap=True)


def _cells(row: ProbeRow) -> tuple[Text, Text, Text]:
    said = Text(row.meaning)
    if row.detail:
        said.append(f"\n{row.detail}", style="italic")
    return Text(row.check + (" *" if row.required else "")), Text(row.verdict.value, style=_STYLES[row.verdict]), said


def main() -> None:
    """The entry point `objcat`: runs the command and turns every error of ours into one sentence and exit code 2."""
    try:
        app()
    except (FileIOError, ObjcatError) as error:
        print(f"objcat: {error}", file=sys.stderr)
        sys.exit(EXIT_WRONG)


if __name__ == "__main__":
    main()
