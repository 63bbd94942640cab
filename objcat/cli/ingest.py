"""`objcat ingest`: databases and logs into the lake."""

from __future__ import annotations

import gc
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from fileio.env import default_env
from fileio.errors import InvalidConfig
from objcat.cli.common import EXIT_NO, Json
from objcat.cli.ingest_page import ingest_page
from objcat.cli.ingest_progress import ShownProgress, log_to, number_of
from objcat.cli.output import draw, say, say_json, sheet, time_text, words
from objcat.cli.report import write_page
from objcat.errors import IngestStopped, InvalidInput
from objcat.ingest.config import IngestConfig, hint, read_config
from objcat.ingest.followed_tables import GONE
from objcat.ingest.ingest_check import CheckedTable, IngestCheck, check_ingest
from objcat.ingest.ingest_metrics import serve_metrics
from objcat.ingest.ingest_status import IngestStatus, read_state, read_status
from objcat.ingest.requests import IngestRequest, RequestKind, add_request, withdraw_skip
from objcat.ingest.routes import HISTORY, SOFT, Router
from objcat.ingest.runner import Ingest, IngestProgress
from objcat.ingest.sources import keeps_left_out, open_source, position_text, transaction_text
from objcat.lake.lake import Lake, connect

POSITION_SHOWN_MAX = 100

Config = Annotated[str, typer.Argument(help="The file of the configuration.", metavar="CONFIG")]

ingest = typer.Typer(name="ingest", no_args_is_help=True, help="Follow databases and logs into the lake.")


@ingest.command()
def check(config: Config, as_json: Json = False) -> None:
    """Connect, check the settings of the source, and list the tables that will be followed. It changes nothing.

    The exit code is 1 when the source cannot be followed, or a table does not fit its route.
    """
    read = read_config(config)
    source = open_source(read, Router(read), default_env())
    try:
        found = check_ingest(read, _lake(read), source)
    finally:
        source.close()
    if as_json:
        say_json({"fits": found.fits, **asdict(found)})
    else:
        _show_check(found)
    if not found.fits:
        raise typer.Exit(1)


@ingest.command()
def run(config: Config, as_json: Json = False) -> None:
    """Follow a source until you stop the command, by Ctrl-C or SIGTERM. It goes on from its last commit.

    You may end it at any time, also with kill -9: rows and position are one commit. Needs the extra of the source, such as
    `ingest-postgres`.
    """
    _follow(config, is_once=False, as_json=as_json)


@ingest.command()
def once(config: Config, as_json: Json = False) -> None:
    """Bring the lake up to where the source is now, and end.

    The exit code is 1 when tables are set aside that a route follows: standard error names each with the reason. The others are up to date.
    """
    _follow(config, is_once=True, as_json=as_json)


@ingest.command()
def status(
    config: Config,
    html: Annotated[str | None, typer.Option("--html", metavar="FILE", help="Write a page of HTML.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing file.")] = False,
    offline: Annotated[bool, typer.Option("--offline", help="Ask the lake alone, not the source.")] = False,
    as_json: Json = False,
) -> None:
    """Show how far an ingest is: position, tables, lag, what the source keeps, dead letters. It changes nothing."""
    read = read_config(config)
    found = _status(read, _lake(read), offline=offline)
    if html is not None:
        write_page(Path(html), ingest_page(found, default_env().now_ms()), overwrite=overwrite)
    if as_json:
        say_json(asdict(found))
        return
    if html is not None:
        say(f"{html} tells of {found.source}: open it in a browser")
        return
    _show(found)


@ingest.command()
def resnapshot(
    config: Config,
    table: Annotated[str | None, typer.Argument(help="The table at the source, such as public.orders.", metavar="TABLE")] = None,
    all_tables: Annotated[bool, typer.Option("--all", help="All tables, from a new position: after a lost slot or a purged log.")] = False,
    left_out: Annotated[
        bool,
        typer.Option(
            "--left-out", help="Of a folder: only files that were left out, as the table was set aside or by skip. It keeps its rows."
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Let the ingest read a table again, also one that was set aside.

    Rows of files, messages or slots that the source no longer has go from the table, unless you give --left-out.
    A table kept as history (deletes = "history") keeps all its rows: each row that the source has now is appended to them.
    `_op` tells them: `read` where a database was read, and `truncate` before the first where files, messages or slots are.
    The request waits in the lake. A running ingest takes it in less than a minute, and the next start of one that does not run.
    """
    if (table is None) is not all_tables:
        raise InvalidInput("Name one table, or give --all. Nothing was asked.")
    read = read_config(config)
    if left_out and (table is None or not keeps_left_out(read)):
        raise InvalidInput(
            "--left-out needs the name of a table, and a source of the kind folder: others have no record of what was left out. "
            "Nothing was asked. Leave it out to read the table again."
        )
    if table is not None and not Router(read).follows(table):
        known = [one.name for one in read_status(read, _lake(read)).tables]
        others = hint(table, known) if known else "no table was read so far."
        raise InvalidInput(f"No route of {config} follows a table {table!r}: {others} Nothing was asked.")
    kind: RequestKind = "resnapshot_all" if all_tables else "left_out" if left_out else "resnapshot"
    kept = ""
    if not left_out and (Router(read).keeps_history(table) if table is not None else any(one.deletes == HISTORY for one in read.routes)):
        kept = " A table kept as history keeps its rows: each row that the source has now is appended to them."
    _tell_request(read, add_request(_lake(read), read, kind, table or ""), as_json=as_json, more=kept)


@ingest.command()
def skip(
    config: Config,
    position: Annotated[str, typer.Argument(help="The transaction, as the message of the ingest names it.", metavar="POSITION")],
    withdraw: Annotated[bool, typer.Option("--withdraw", help="Do not leave it out: take an earlier request back.")] = False,
    as_json: Json = False,
) -> None:
    """Leave a transaction out that cannot be written. Its tables are read again, and the dead letters name it.

    Kafka, folders and tables of a lake cannot be read in part: there the lake lacks it until `resnapshot`.
    The position must be of the form of the source, and come after what is committed.
    `objcat ingest status` shows which requests wait, since when, and which of them wait for what cannot come any more.
    """
    read = read_config(config)
    lake = _lake(read)
    stored = lake.source_position(read.name, shared_log=read.shared_log)
    if stored is None:
        raise InvalidInput(
            f"{read.name} has not begun, so it has refused no transaction. Nothing was asked. Run `objcat ingest once {config}`."
        )
    at = stored.state["position"]
    if withdraw:
        request = withdraw_skip(lake, read, read_state(read, stored), position)
    else:
        request = add_request(lake, read, "skip", transaction_text(read, lake, at, position))
    _tell_request(read, request, as_json=as_json, more=f" It is at {_shortened(position_text(read, at))} now.")


def _tell_request(config: IngestConfig, request: IngestRequest, *, as_json: bool, more: str = "") -> None:
    if as_json:
        say_json({"request": request.number, "kind": request.kind, "what": request.what})
    else:
        say(f"Request {request.number} waits for {config.name}: {request.text}.{more}")


def _lake(config: IngestConfig) -> Lake:
    return connect(config.lake.url, {name: _text(value) for name, value in config.lake.options.items()})


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _follow(path: str, *, is_once: bool, as_json: bool) -> None:
    config = read_config(path)
    shown = None
    if as_json:
        log_to(None)
    else:
        shown = ShownProgress(config.name, is_once=is_once, env=default_env())
    made = Ingest(config, _lake(config), open_source, tell=lambda at: _tell_json(config.name, at) if shown is None else shown.tell(at))
    stop_metrics = None if is_once or not config.run.metrics_port else _serve_metrics(config, made)
    stop_shown = None if shown is None else shown.start(made)
    # What is there by now stays to the end. The collector of garbage would look at all of it again and again while rows come and go.
    gc.freeze()
    try:
        with _ends_by_signal(made) as signals:
            state = made.once() if is_once else made.run()
    finally:
        if stop_shown is not None:
            stop_shown()
        if stop_metrics is not None:
            stop_metrics()
    values = made.metrics.values()
    commits, changes, rows = (int(values.get(f"{name}_total", 0)) for name in ("commits", "changes", "rows"))
    done = {
        "source": config.name,
        "position": position_text(config, state.position),
        "consistent": state.is_consistent,
        "commits": commits,
        "changes": changes,
        "rows": rows,
        "dead": state.dead,
        "nulled": state.nulled,
    }
    aside = {name: table.aside for name, table in sorted(state.tables.items()) if table.aside is not None}
    if as_json:
        say_json({**done, "set_aside": aside})
    else:
        say(
            f"{config.name} is at {_shortened(str(done['position']))}: {number_of(commits, 'commit')}, "
            f"{number_of(changes, 'change')}, {number_of(rows, 'row')} written"
        )
        for name, why in aside.items():
            say(f"set aside: {name}: {why}", error=True)
        if aside and keeps_left_out(config):
            say(f"files of these tables wait: `objcat ingest resnapshot {path} TABLE --left-out` takes them", error=True)
        if state.dead:
            say(f"{number_of(state.dead, 'dead letter')} so far: `objcat ingest status {path}` shows them", error=True)
    if signals:
        raise typer.Exit(128 + signals[0])
    if is_once and any(why != GONE and made.follows(name) for name, why in aside.items()):
        raise typer.Exit(EXIT_NO)


def _serve_metrics(config: IngestConfig, made: Ingest) -> Callable[[], None]:
    host, port = config.run.metrics_host, config.run.metrics_port
    try:
        return serve_metrics(made.metrics.text, host=host, port=port, env=default_env())[1]
    except OSError as error:
        raise InvalidConfig(
            f"Metrics cannot be served at {host}:{port}: {error.strerror or error}. Nothing was done. Set another metrics_port or "
            f"metrics_host in [run] of {config.path}."
        ) from error


@contextmanager
def _ends_by_signal(made: Ingest) -> Iterator[list[int]]:
    """A block in which Ctrl-C and SIGTERM end an ingest after the commit in progress, and a second one ends it at once.

    Yields the signals that came.
    """
    came: list[int] = []
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def stop(number: int, _frame: object) -> None:
        came.append(number)
        made.stop()
        restore()

    for number in before:
        signal.signal(number, stop)
    try:
        yield came
    finally:
        restore()


def _tell_json(name: str, at: IngestProgress) -> None:
    say_json({"source": name, **asdict(at)})
    sys.stdout.flush()


def _status(config: IngestConfig, lake: Lake, *, offline: bool) -> IngestStatus:
    if offline:
        return read_status(config, lake)
    try:
        source = open_source(config, Router(config), default_env())
    except IngestStopped as error:
        return read_status(config, lake, away=config.hide(str(error)))
    try:
        return read_status(config, lake, source)
    finally:
        source.close()


def _shortened(position: str) -> str:
    """A position in part of a line. Positions of many servers or domains are long."""
    if len(position) <= POSITION_SHOWN_MAX:
        return position
    return f"{position[:POSITION_SHOWN_MAX]}... ({len(position):,} characters, which --json prints)"


def _show(found: IngestStatus) -> None:
    if found.position is None:
        say(f"{found.source} has not begun. The first run reads all tables; `objcat ingest check` lists them.")
        if found.away is not None:
            say(found.away)
        return
    at = "" if found.committed_at_ms is None else f", committed {time_text(found.committed_at_ms)} UTC"
    say(f"{found.source} is at {_shortened(found.position)} (version {found.version}, slot {found.slot}{at})")
    aside = sum(table.why is not None for table in found.tables)
    without = f", without {number_of(aside, 'table')} set aside" if aside else ""
    say("consistent: " + (f"yes{without}" if found.is_consistent else "no, tables are being read, or a transaction is not whole yet"))
    if found.is_behind is not None:
        say("up to date: " + (f"no, the source is at {_shortened(found.head or '')}" if found.is_behind else "yes"))
    if found.rewound_at is not None:
        say(f"The RESTORE at slot {found.rewound_at} took tables back: the next run reads all tables again.")
    if found.report is not None:
        behind = "" if found.report.behind_bytes is None else f", {found.report.behind_bytes:,} bytes behind"
        kept = "" if found.report.retained_bytes is None else f", the source keeps {found.report.retained_bytes:,} bytes"
        say(f"{found.report.state}{behind}{kept}")
        for warning in found.report.warnings:
            say(warning)
    if found.away is not None:
        say(found.away)
    _show_tables(found)
    if found.nulled:
        say(f"{found.nulled:,} values are null that no type of the lake holds, such as infinite times")
    if found.dead:
        say(f"{number_of(found.dead, 'dead letter')}; the newest ones:")
        for letter in found.dead_letters:
            say(f"  {letter.at} {letter.table or '-'} at {letter.position or '-'}: {letter.error or ''}")


def _show_tables(found: IngestStatus) -> None:
    if found.tables:
        shown = sheet("tables")
        for title in ("table", "state", "rows of the last snapshot"):
            shown.add_column(title, overflow="fold")
        for table in found.tables:
            shown.add_row(words(table.name), words(table.state), words(f"{table.rows:,}"))
        draw(shown)
    for table in found.tables:
        if table.why is not None:
            say(f"set aside: {table.name}: {table.why}")
    for request in found.waiting:
        say(f"waits: {request}")


def _show_check(found: IngestCheck) -> None:
    for problem in found.problems:
        say(problem)
    if found.fits:
        begun = "has not begun" if found.position is None else f"is at {found.position}"
        say(f"{found.source} can be followed. It {begun}.")
    if found.tables:
        shown = sheet("tables that are followed")
        for title in ("table", "in the lake", "key", "columns in the lake", "remark"):
            shown.add_column(title, overflow="fold")
        for table in found.tables:
            columns = ", ".join(f"{name} {kind}" for name, kind in table.columns.items())
            shown.add_row(*map(words, (table.name, table.target, ", ".join(table.key) or "none", columns, _remark(table))))
        draw(shown)
    elif found.fits:
        say("No table is known so far: tables are known once something of them was read.")
    if found.not_followed:
        say(f"not followed: {', '.join(found.not_followed)}")


def _remark(table: CheckedTable) -> str:
    if table.problem is not None:
        return f"would be set aside: {table.problem}"
    said = []
    if not table.key:
        said.append("each change becomes a row" if table.deletes == HISTORY else "without a key, inserts are followed alone")
    if table.deletes == SOFT:
        said.append("deleted rows stay, marked")
    if table.exists:
        said.append("the lake has this table")
    return "; ".join(said)
