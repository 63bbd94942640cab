"""`objcat log` and `objcat show`: the commits of a table."""

from __future__ import annotations

import json
from typing import Annotated, Any

import msgspec
import typer

from fileio.contract import GetResult
from fileio.errors import NotFound
from objcat.cli.common import Option, TableUrl, open_table
from objcat.cli.output import cell, draw, instant_text, say_json, sheet, time_text, width, words
from objcat.errors import InvalidInput
from objcat.inspection.history import commit_facts
from objcat.metadata.files import TableDelta, decode_delta
from objcat.metadata.schema_differences import describe_changes
from objcat.metadata.shared_commits import commits_of
from objcat.table.reader import TableReader
from objcat.timeline.entry import Action, Entry, Txn, intent_key, parse_txn, requested_key
from objcat.timeline.intents import decode_intent
from objcat.timeline.json_objects import encode_object
from objcat.timeline.log import with_changes

WIDE_COLUMNS = 130
"""Terminal width from which on `log` shows files and transaction ids too; `--json` always does."""


def log(
    url: TableUrl,
    option: Option = None,
    requests: Annotated[bool, typer.Option("--requests", help="Show the requests of each commit to the store.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object for each commit.")] = False,
) -> None:
    """Show the commits of a table, oldest first: slot, action, time, what was written, and the metadata of the user."""
    table = open_table(url, option)
    commits = [commit for entry in table.inspect.history() for commit in commits_of(entry)]
    if as_json:
        for entry in commits:
            say_json({**commit_row(entry, table.id), "committed_at": instant_text(entry.committed_at_ms)})
        return
    rows = [commit_row(entry, table.id) for entry in commits]
    shown = sheet(f"{table.name} in {table._context.fileio.url}")
    columns = {"slot": "slot", "action": "action", "committed_at": "committed (UTC)"}
    if requests:
        columns |= {"requests": "requests", "slots_lost": "slots lost", "attempts": "attempts"}
    else:
        columns |= {"rows": "rows", "bytes": "bytes"}
        columns |= {"files": "files", "txn": "txn"} if width() >= WIDE_COLUMNS else {}
        columns |= {"positions": "positions"} if any(row["positions"] for row in rows) else {}
        columns |= {"metadata": "metadata"}
    numbers = ("slot", "rows", "files", "bytes", "slots_lost", "attempts")
    for key, title in columns.items():
        wraps = key in ("metadata", "positions", "requests")
        shown.add_column(title, justify="right" if key in numbers else "left", no_wrap=not wraps, overflow="fold" if wraps else "ellipsis")
    for row in rows:
        shown.add_row(*(cell(row[key]) for key in columns))
    draw(shown)


def show(
    url: TableUrl,
    instant: Annotated[
        str, typer.Argument(help="A slot, or a transaction id as `log` shows it. The transaction may still be in progress.")
    ],
    option: Option = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the entry as the log has it.")] = False,
) -> None:
    """Show one instant of a table: its writer, its time, the file groups that it touched, and its files."""
    table = open_table(url, option)
    entry = _find(table, instant)
    if entry is None:
        _show_intent(table, parse_txn(instant), as_json=as_json)
        return
    if as_json:
        say_json(json.loads(encode_object(entry)), indent=2)
        return
    delta = _delta_of(entry, table.id)
    facts: dict[str, Any] = {
        "action": entry.action.value,
        "transaction": entry.txn,
        "with it": ", ".join(other.txn for other in entry.also) or None,
        "committed (UTC)": time_text(entry.committed_at_ms),
        "planned at slot": entry.base,
        "by": entry.writer or None,
        "rolls back": entry.rollback_of,
        "executes the plan": entry.plan,
        "applications": {app: version for versions in entry.apps.values() for app, version in versions.items()} or None,
        "positions": {source: change.version for source, change in entry.positions.items()} or None,
        "tables": ", ".join(entry.footprint) if set(entry.footprint) - {table.id} else None,
    }
    if entry.summary is not None:
        facts |= {name: value for name, value in msgspec.to_builtins(entry.summary).items() if value is not None}
    facts |= {f"{part} of file groups": _group_ids(group_ids) for part, group_ids in _touched(entry, table.id).items()}
    facts |= _changes_of_spec(table, entry, delta)
    facts["metadata"] = dict(entry.metadata) or None
    _print_facts(f"slot {entry.slot} of {table.name}", facts)
    files = sheet("files")
    for title in ("kind", "file_group", "rows", "bytes", "path"):
        files.add_column(title, overflow="fold", justify="right" if title in ("rows", "bytes") else "left")
    for base in delta.bases:
        files.add_row("base", words(str(base.group_id)), cell(base.rows), cell(base.bytes), words(base.path))
    for one in delta.logs:
        files.add_row("log", f"{len(one.slices)} file groups", cell(one.rows), cell(one.bytes), words(one.path))
    if files.row_count:
        draw(files)


def commit_row(entry: Entry, table: str) -> dict[str, Any]:
    """What one commit did to a table, for people."""
    summary = entry.summary
    return {
        **commit_facts(entry, table),
        "committed_at": time_text(entry.committed_at_ms),
        "slots_lost": None if summary is None else summary.slots_lost,
        "requests": None if summary is None else dict(summary.requests),
        "positions": {source: change.version for source, change in entry.positions.items()},
        "metadata": entry.metadata if entry.rollback_of is None else {**entry.metadata, "rollback of": entry.rollback_of},
    }


def _delta_of(entry: Entry, table: str) -> TableDelta:
    return decode_delta(entry.changes[table]) if table in entry.changes else TableDelta()


def _find(table: TableReader, instant: str) -> Entry | None:
    """The entry of a slot or a transaction; None for a transaction without one. Raises InvalidInput."""
    if instant.isascii() and instant.isdigit():
        newest = table.snapshot.slot
        digits = instant.lstrip("0") or "0"
        # Python refuses to parse very long numbers.
        found = table._context.timeline.log.read_slot(int(digits)) if len(digits) <= len(str(newest)) and int(digits) <= newest else None
        if found is None:
            raise InvalidInput(f"The table {table.name!r} has no slot {digits[:40]}. Use a slot from 0 to {newest}.")
        return with_changes(table._context.fileio, [found])[0]
    txn = parse_txn(instant)
    return next((entry for entry in table.inspect.history() if txn in (*entry.txns, entry.rollback_of)), None)


def _show_intent(table: TableReader, txn: Txn, *, as_json: bool) -> None:
    """Print an instant that is only requested or under way. Raises InvalidInput for an unknown one."""
    for state, key in (("INFLIGHT", intent_key(txn)), ("REQUESTED", requested_key(txn))):
        try:
            found = table._context.fileio.get(key)
        except NotFound:
            continue
        assert isinstance(found, GetResult)
        if as_json:
            say_json(json.loads(found.data))
            return
        intent = decode_intent(found.data, key=key)
        facts = {
            "state": state,
            "action": intent.action.value,
            "requested (UTC)": time_text(intent.requested_at_ms),
            "last sign of life (UTC)": time_text(intent.heartbeat_ms),
            "host": intent.host,
            "engine": intent.engine,
            "planned at slot": intent.base,
        }
        _print_facts(f"transaction {txn} of {table.name}", facts)
        return
    raise InvalidInput(f"The table {table.name!r} has no transaction {txn}. `objcat log --json` lists the transactions.")


def _touched(entry: Entry, table: str) -> dict[str, list[str]]:
    footprint = entry.footprint.get(table)
    if footprint is None:
        return {}
    parts = ("creates", "appends", "replaces", "retires", "rmw", "reads")
    return {part: [str(group_id) for group_id in getattr(footprint, part)] for part in parts if getattr(footprint, part)}


def _changes_of_spec(table: TableReader, entry: Entry, delta: TableDelta) -> dict[str, str | None]:
    """What an entry changes in the table's definition, in words; nothing for the entry that creates it."""
    restored = entry.footprint[table.id].restores if table.id in entry.footprint else None
    if entry.action is Action.CREATE or (delta.spec is None and restored is None):
        return {}
    before = table._context.timeline.at(entry.slot - 1).state[table.id].spec
    spec = delta.spec or table._context.timeline.at(entry.slot).state[table.id].spec
    said: dict[str, str | None] = {
        "restores slot": None if restored is None else str(restored),
        "schema": "; ".join(describe_changes(before.table_schema, spec.table_schema)) or None,
    }
    if spec.partitioning != before.partitioning:
        said["partitioned by"] = ", ".join(field.name for field in spec.partitioning.fields) or "nothing"
    properties = [f"{name}={value}" for name, value in sorted(spec.properties.items()) if before.properties.get(name) != value]
    properties += [f"{name} taken away" for name in sorted(before.properties.keys() - spec.properties.keys())]
    return said | {"properties": "; ".join(properties) or None}


def _group_ids(group_ids: list[str]) -> str:
    return ", ".join(group_ids[:8]) + (f" and {len(group_ids) - 8:,} more" if len(group_ids) > 8 else "")


def _print_facts(title: str, facts: dict[str, Any]) -> None:
    shown = sheet(title, headed=False)
    shown.add_column("what", style="bold", no_wrap=True)
    shown.add_column("is", overflow="fold")
    for name, value in facts.items():
        if value is not None:
            shown.add_row(words(name), cell(value) if not isinstance(value, str) else words(value))
    draw(shown)
