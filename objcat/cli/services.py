"""`objcat compact`, `cluster`, `split`, `clean`, `savepoint`, `release`, `restore`, `undrop` and `erase`: services of one table."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer

from objcat.cli.common import EXIT_NO, DryRun, Json, Option, TableUrl, lake_and_name, open_table
from objcat.cli.output import progress, say, say_json
from objcat.errors import InvalidInput
from objcat.maintenance.clean import CleanPlan
from objcat.maintenance.compact import CompactionPlan
from objcat.maintenance.savepoint import check_readable, check_slot
from objcat.table.table import Table

Slot = Annotated[int, typer.Argument(help="A slot, as `objcat log` shows it.")]


def compact(
    url: TableUrl,
    option: Option = None,
    schedule: Annotated[bool, typer.Option("--schedule", help="Only write a plan, which another job executes.")] = False,
    execute: Annotated[
        bool, typer.Option("--execute", help="Only execute the plans that wait: those of --schedule or of the property compact_plan_only.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Merge log rows into base files, as one commit.

    No writer waits for it or conflicts with it. You may stop it at any time.
    """
    if schedule and execute:
        raise InvalidInput("--schedule and --execute exclude each other. Give one of them.")
    table = open_table(url, option)
    if schedule:
        _say_plan(table.maintenance.schedule_compaction(), as_json=as_json)
        return
    if execute:
        _execute(table, as_json=as_json)
        return
    with progress(f"compacting {table.name}", shown=not as_json):
        done = table.maintenance.compact()
    if as_json:
        _say_result(done)
    elif done is None:
        say("nothing to compact: no file group has log rows")
    else:
        say(f"slot {done.slot}: {len(done.file_groups):,} file groups are merged; {done.rows:,} rows were written in {done.files:,} files")


def _say_plan(plan: CompactionPlan | None, *, as_json: bool) -> None:
    if as_json:
        _say_result(plan)
    elif plan is None:
        say("nothing to compact: no file group has log rows")
    else:
        say(f"{plan.txn} waits: {len(plan.file_groups):,} file groups as of slot {plan.slot}; objcat compact --execute merges them")


def _execute(table: Table, *, as_json: bool) -> None:
    with progress(f"compacting {table.name}", shown=not as_json):
        executed = table.maintenance.execute_scheduled()
    if as_json:
        say_json([asdict(one) for one in executed])
        return
    for one in executed:
        done = one.result
        if done is None:
            say(f"{one.plan.txn} was left: {one.why or 'there was nothing left to merge'}")
        else:
            say(f"slot {done.slot}: {len(done.file_groups):,} file groups are merged, as {one.plan.txn} says; {done.rows:,} rows written")
    if not executed:
        say("no plan waits")


def cluster(  # noqa: PLR0917 - typer makes an option of each
    url: TableUrl,
    option: Option = None,
    by: Annotated[
        list[str] | None,
        typer.Option("--by", help="A column to sort by. You may repeat it. Without it, the command joins small file groups."),
    ] = None,
    zorder: Annotated[bool, typer.Option("--zorder", help="Sort along a z-order of two to four columns.")] = False,
    where: Annotated[
        str | None, typer.Option("--where", help="Only file groups that may hold a row of this filter: \"at > '2026-01-01'\".")
    ] = None,
    io_bytes: Annotated[int | None, typer.Option("--io-bytes", help="The most bytes to read and write.")] = None,
    as_json: Json = False,
) -> None:
    """Rewrite file groups, as one commit that changes no row: join small ones, or sort rows.

    Under the bucket index it only sorts rows within each file group. It is safe while others read and write. You may stop it at any time.
    """
    table = open_table(url, option)
    with progress(f"clustering {table.name}", shown=not as_json):
        done = table.maintenance.cluster(by or [], zorder=zorder, where=where, io_bytes_max=io_bytes)
    if as_json:
        _say_result(done)
    elif done is None:
        say("nothing to gain: the file groups are large enough, and in order")
    else:
        say(f"slot {done.slot}: {done.groups_before:,} file groups became {done.groups:,}; {done.rows:,} rows were written")


def split(
    url: TableUrl,
    option: Option = None,
    partition: Annotated[str, typer.Option("--partition", help="The partition of a partitioned table, such as city=Rome.")] = "",
    count: Annotated[
        int | None,
        typer.Option("--count", help="How many buckets: the current number times a power of two. Without it, twice the current number."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Increase the buckets of a table or a partition, as one commit that moves no data.

    The next compaction writes the files of each new bucket.
    """
    done = open_table(url, option).maintenance.split_buckets(partition=partition, count=count)
    if as_json:
        _say_result(done)
    elif done is None:
        say("nothing to do: it has that many buckets already")
    else:
        say(f"slot {done.slot}: {done.partition or 'the table'} has {done.count:,} buckets")


def clean(  # noqa: PLR0913, PLR0917 - typer makes an option of each
    url: TableUrl,
    option: Option = None,
    keep_slots: Annotated[int | None, typer.Option("--keep-slots", help="How many of the newest slots remain readable.")] = None,
    before: Annotated[int | None, typer.Option("--before", help="The oldest slot that remains readable.")] = None,
    keep_commits: Annotated[int | None, typer.Option("--keep-commits", help="How many of the newest commits remain readable.")] = None,
    keep_versions: Annotated[
        int | None, typer.Option("--keep-versions", help="How many of the newest commits that wrote base files remain readable.")
    ] = None,
    keep_hours: Annotated[int | None, typer.Option("--keep-hours", help="How many hours before the newest commit remain readable.")] = None,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Expire old slots, and delete the files that only these slots need. Savepoints remain.

    Without an option, the properties of the table say how much remains readable.

    It is safe while others read and write. You may stop it at any time: the next clean finishes it.
    """
    table = open_table(url, option)
    kept = {
        "keep_slots": keep_slots,
        "before": before,
        "keep_commits": keep_commits,
        "keep_versions": keep_versions,
        "keep_hours": keep_hours,
    }
    if dry_run:
        _would_clean(table, table.maintenance.plan_clean(**kept), as_json=as_json)
        return
    with progress(f"cleaning {table.name}", shown=not as_json):
        done = table.maintenance.clean(**kept)
    if as_json:
        _say_result(done)
    elif done.slot is None:
        say(f"nothing to delete: slots from {done.bound:,} on are readable")
    else:
        made_sure = f"; {done.earlier:,} that earlier cleans listed are gone for certain" if done.earlier else ""
        left = f"; {done.failed:,} could not be deleted: clean again" if done.failed else ""
        deleted = f"{done.files - done.earlier:,} files were deleted{made_sure}{left}"
        say(f"slot {done.slot}: slots from {done.bound:,} on are readable, {deleted}")
    if done.doubt and not as_json:
        say(done.doubt)


def _would_clean(table: Table, plan: CleanPlan | None, *, as_json: bool) -> None:
    paths = [] if plan is None else sorted({*plan.removes, *plan.leftovers})
    bound = table.snapshot.log.marks(table.id).bound if plan is None else plan.bound
    if as_json:
        say_json({"dry_run": True, "bound": bound, "files": len(paths), "paths": paths})
        return
    for path in paths:
        say(path)
    say(f"would delete {len(paths):,} files; slots from {bound:,} on would be readable; nothing was changed")


def savepoint(
    url: TableUrl,
    option: Option = None,
    slot: Annotated[int | None, typer.Option("--slot", help="The slot. Without it, the newest one.")] = None,
    name: Annotated[str, typer.Option("--name", help="A name, which `objcat log` shows.")] = "",
    as_json: Json = False,
) -> None:
    """Retain a slot, so that no clean expires it, until `objcat release`."""
    done = open_table(url, option).maintenance.savepoint(slot=slot, name=name)
    if as_json:
        _say_result(done)
    elif done is None:
        say("nothing to do: that slot is saved already")
    else:
        say(f"slot {done.slot}: slot {done.saved} stays readable until `objcat release` takes it back")


def release(url: TableUrl, slot: Slot, option: Option = None, as_json: Json = False) -> None:
    """Remove a savepoint, so that the next clean may delete the files that only it needs."""
    table = open_table(url, option)
    done = table.maintenance.release_savepoint(slot=slot)
    if as_json:
        _say_result(done)
    elif done is None:
        saved = sorted(table.snapshot.log.marks(table.id).saved)
        say(f"nothing to do: slot {slot} is not saved; saved are {', '.join(map(str, saved)) or 'none'}")
    else:
        say(f"slot {done.slot}: slot {done.saved} is released; the next `objcat clean` may delete what only it kept")


def restore(url: TableUrl, slot: Slot, option: Option = None, dry_run: DryRun = False, as_json: Json = False) -> None:
    """Restore the rows and the schema of an earlier slot, as one commit that writes no data.

    The slots since then remain readable.
    """
    table = open_table(url, option)
    if dry_run:
        _would_restore(table, slot, as_json=as_json)
        return
    done = table.restore(to=slot)
    if as_json:
        _say_result(done)
    else:
        say(f"slot {done.slot}: the table is as it was at slot {done.restored}; `objcat restore` with {done.slot - 1} takes that back")


def _would_restore(table: Table, slot: int, *, as_json: bool) -> None:
    log, url = table.snapshot.log, table._context.fileio.url
    check_slot(log, slot, what="slot", where=url)
    check_readable(log, table.id, slot, where=url)
    now, then = table.scan().count(), table.scan(as_of=slot).count()
    undone = log.slot - slot
    if as_json:
        say_json({"dry_run": True, "restored": slot, "newest": log.slot, "undone": undone, "rows": now, "rows_restored": then})
    else:
        say(f"would take back what {undone:,} slots did: {now:,} rows would be {then:,}, as at slot {slot}; nothing was changed")


def undrop(
    url: TableUrl,
    option: Option = None,
    new_name: Annotated[str | None, typer.Option("--new-name", help="A new name for the table, if another table has its name now.")] = None,
    table: Annotated[
        str | None, typer.Option("--id", help="The id of the table, if several tables of that name were dropped. Without it, the last one.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Restore a dropped table. `objcat ls --dropped` lists the tables that can be restored."""
    lake, name = lake_and_name(url, option)
    back = lake.undrop_table(name, new_name=new_name, table=table)
    if as_json:
        say_json({"name": back.name, "id": back.id, "slot": back.snapshot.slot})
    else:
        say(f"{back.name} is back, as it was when it was dropped")


def erase(
    url: TableUrl,
    where: Annotated[str, typer.Option("--where", help='A filter that selects the rows: "id = 17".')],
    option: Option = None,
    older_than: Annotated[
        float, typer.Option("--older-than", metavar="SECONDS", help="How long a writer must have been silent to count as dead.")
    ] = 3600,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Delete rows for good, with every file that holds or held them. Prints a certificate.

    All slots except the newest one expire.

    If it is interrupted, the next call continues. Exit code 1: another writer added such rows in the meantime.
    """
    table = open_table(url, option)
    if dry_run:
        _would_erase(table, where, as_json=as_json)
        return
    with progress(f"erasing rows of {table.name}", shown=not as_json):
        done = table.erase(where, older_than_s=older_than)
    if as_json:
        say_json(asdict(done))
    else:
        for path in done.files:
            say(path)
        rows = (
            "no row passed any more" if done.delete_slot is None else f"{done.deleted or 0:,} rows were deleted at slot {done.delete_slot}"
        )
        say(f"{rows}; the {len(done.files):,} objects above are gone; slots from {done.readable_from:,} on are readable")
        say(f"read again at slot {done.checked_slot}: {done.found:,} such rows")
    if done.found:
        raise typer.Exit(EXIT_NO)


def _would_erase(table: Table, where: str, *, as_json: bool) -> None:
    plan = table.plan_erasure(where)
    if as_json:
        say_json({"dry_run": True, **asdict(plan)})
        return
    for path in plan.files:
        say(path)
    files = f"these {len(plan.files):,} files and those that hold the rows now"
    say(f"would delete {plan.rows:,} rows, {files}; {plan.slots:,} slots would expire")
    if plan.saved:
        say(f"would be refused: savepoints hold such rows; `objcat release` slots {', '.join(map(str, plan.saved))} first")
    say("nothing was changed")


def _say_result(done: Any) -> None:
    """Print the result of a service as JSON; null where there was nothing to do."""
    say_json(None if done is None else asdict(done))
