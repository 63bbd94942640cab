"""`objcat report`: one self-contained page of HTML about a table. This module reads the table, `report_page` writes the page."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from fileio.contract import GetResult
from fileio.errors import NotFound
from objcat.cli.common import Json, Option, TableUrl, open_table
from objcat.cli.history import commit_row
from objcat.cli.output import progress, say, say_json
from objcat.cli.report_page import Commit, Looked, ShownSavepoint, ShownWriter, page_of
from objcat.errors import CorruptTable, InvalidInput
from objcat.maintenance.due import waiting_of, why_compact
from objcat.maintenance.metrics import began_ms
from objcat.maintenance.savepoint import NAME_KEY
from objcat.metadata.maintenance_policy import policy_of
from objcat.metadata.manifest import Manifests
from objcat.metadata.shared_commits import commits_of
from objcat.table.reader import TableReader
from objcat.timeline.entry import Action, Entry
from objcat.timeline.intents import REQUESTED_SUFFIX, decode_intent

COMMITS_MAX = 1000
WRITERS_MAX = 100


def report(
    url: TableUrl,
    file: Annotated[str, typer.Argument(help="The file to write.")] = "objcat-report.html",
    option: Option = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing file.")] = False,
    as_json: Json = False,
) -> None:
    """Write a page of HTML about a table.

    It shows what to do, the commits, the schema, the settings, the readable slots, sizes, unmerged log rows, writers in progress,
    conflicts and requests.
    """
    target = Path(file)
    check_target(target, overwrite=overwrite)
    table = open_table(url, option)
    with progress(f"looking at {table.name}", shown=not as_json):
        page = page_of(look(table, url))
    write_page(target, page, overwrite=overwrite)
    if as_json:
        say_json({"file": file, "slot": table.snapshot.slot, "bytes": target.stat().st_size})
    else:
        say(f"{file} tells of {table.name} at slot {table.snapshot.slot}: open it in a browser")


def check_target(target: Path, *, overwrite: bool) -> None:
    """Raises InvalidInput when a file exists that is not to be replaced, or what exists is no file, such as a device."""
    if target.exists() and not target.is_file():
        raise InvalidInput(f"{target} is not a file, and was left as it is. Choose another name.")
    if target.exists() and not overwrite:
        raise InvalidInput(f"{target} exists already. Choose another name, or give --overwrite.")


def write_page(target: Path, page: str, *, overwrite: bool) -> None:
    """Write a page as a whole. Raises InvalidInput when it cannot be written."""
    check_target(target, overwrite=overwrite)
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        part.write_text(page, encoding="utf-8")
        part.replace(target)
    except OSError as error:
        raise InvalidInput(f"{target} cannot be written ({error.strerror}). Choose another folder.") from error
    finally:
        part.unlink(missing_ok=True)


def look(table: TableReader, url: str) -> Looked:
    """What the page says of the newest slot and the newest `COMMITS_MAX` commits. `url`: the table's name in commands."""
    stats = table.inspect.stats()
    snapshot, now_ms = table.snapshot, table._context.fileio.env.now_ms()
    entries = sorted(table.inspect.history(limit=COMMITS_MAX), key=lambda entry: entry.slot)
    marks = snapshot.log.marks(table.id)
    policy = policy_of(snapshot.spec.properties)
    waiting = waiting_of(snapshot.file_groups(Manifests(table._context.fileio)), now_ms=snapshot.log.committed_at_ms)
    names = {footprint.saves: entry.metadata.get(NAME_KEY, "") for entry in entries if (footprint := entry.footprint.get(table.id))}
    at_ms = {entry.slot: entry.committed_at_ms for entry in entries}
    return Looked(
        name=table.name,
        url=url,
        place=table._context.fileio.url,
        now_ms=now_ms,
        stats=stats,
        spec=snapshot.spec,
        bucket_counts=dict(snapshot.table.bucket_counts),
        policy=policy,
        due=why_compact(waiting, policy),
        readable_from=marks.bound,
        readable_from_ms=_time_of(table, marks.bound, at_ms),
        saved=[ShownSavepoint(slot, _time_of(table, slot, at_ms), names.get(slot, "")) for slot in sorted(marks.saved)],
        writers=_writers(table),
        commits=[_commit(commit, table.id) for entry in entries for commit in commits_of(entry)],
        partitions=table.inspect.partitions().to_pylist(),
    )


def _commit(entry: Entry, table: str) -> Commit:
    row = commit_row(entry, table)
    return Commit(
        slot=entry.slot,
        action=entry.action.value,
        at_ms=entry.committed_at_ms,
        took_ms=max(0, entry.committed_at_ms - began_ms(entry.txn)),
        rows=row["rows"],
        bytes=row["bytes"],
        attempts=row["attempts"],
        slots_lost=row["slots_lost"],
        requests=row["requests"] or {},
    )


def _time_of(table: TableReader, slot: int, known: dict[int, int]) -> int | None:
    if slot in known:
        return known[slot]
    entry = table._context.timeline.log.read_slot(slot)
    return None if entry is None else entry.committed_at_ms


def _writers(table: TableReader) -> list[ShownWriter]:
    """Writers and plans in progress, the longest silent ones first."""
    found = [meta for page in table._context.fileio.list("intents/") for meta in page.objects]
    writers = []
    for meta in sorted(found, key=lambda meta: meta.modified_ms)[:WRITERS_MAX]:
        txn = meta.key.rpartition("/")[2].split(".")[0]
        is_plan = meta.key.endswith(REQUESTED_SUFFIX)
        try:
            got = table._context.fileio.get(meta.key)
            assert isinstance(got, GetResult)
            intent = decode_intent(got.data, key=meta.key)
        except NotFound:
            continue
        except CorruptTable:
            writers.append(ShownWriter(txn, Action.COMMIT.value, "?", "its intent cannot be read", None, meta.modified_ms, is_plan=is_plan))
            continue
        writers.append(
            ShownWriter(txn, intent.action.value, intent.host, intent.engine, intent.requested_at_ms, meta.modified_ms, is_plan=is_plan)
        )
    return writers
