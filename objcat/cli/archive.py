"""`objcat archive`, `collect`, `move` and `purge`: services that a log or a lake needs now and then."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from objcat.catalog.plans import find_dropped
from objcat.cli.common import DryRun, Json, Option, TableUrl, lake_and_name, placed
from objcat.cli.output import progress, say, say_json
from objcat.lake.urls import find_log
from objcat.maintenance.purge import plan_purge
from objcat.metadata.table_log import log_of_lake
from objcat.timeline.archive import archive as archive_log
from objcat.timeline.checkpoint_expiry import collect_checkpoints, plan_collection
from objcat.timeline.commit import Committer


def archive(
    url: TableUrl,
    option: Option = None,
    keep_slots: Annotated[int, typer.Option("--keep-slots", help="How many of the newest slots remain as they are.")] = 1000,
    as_json: Json = False,
) -> None:
    """Move log entries below the newest checkpoint to history files.

    Their slots become tombstones. Readers see no difference.

    It is safe while others read and write. You may stop it at any time.
    """
    done = archive_log(find_log(*placed(url, option)), keep_slots=keep_slots)
    if as_json:
        say_json(asdict(done))
    elif done.tombstones:
        say(f"{done.tombstones:,} slots below slot {done.end_slot} were archived, in {len(done.files)} history files")
    else:
        say("nothing to archive")


def collect(
    url: TableUrl,
    option: Option = None,
    keep: Annotated[int, typer.Option("--keep", help="How many of the newest checkpoints remain.")] = 2,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Delete old checkpoints, and objects that no checkpoint names.

    Checkpoints that savepoints need remain. `objcat show` still shows every slot.

    It is safe while others read and write. You may stop it at any time.
    """
    timeline = find_log(*placed(url, option))
    done = plan_collection(timeline, keep=keep) if dry_run else collect_checkpoints(timeline, Committer(timeline.fileio), keep=keep)
    if as_json:
        say_json({"dry_run": True, **asdict(done)} if dry_run else asdict(done))
    elif dry_run and done.voided:
        slots = ", ".join(map(str, done.voided))
        say(f"would delete the checkpoints of slots {slots}: {done.objects:,} objects at least; nothing was changed")
    elif done.slot is None:
        say("nothing to collect")
    else:
        say(f"slot {done.slot}: checkpoints below slot {done.bound} are collected, {done.objects:,} objects were deleted")


def move(
    url: TableUrl,
    shared_log: Annotated[str, typer.Option("--shared-log", metavar="NAME", help="The log to move the table into.")],
    option: Option = None,
    as_json: Json = False,
) -> None:
    """Move a table into a log that other tables share, so that it can change together with them.

    A table that is alone in its log makes that log the shared one, if there is none of that name. Otherwise its rows are copied,
    slots begin again, and the table as it was is a dropped one. It is safe while others read and write. You may stop it at any time.
    """
    lake, name = lake_and_name(url, option)
    with progress(f"moving {name}", shown=not as_json):
        moved = lake.move_to_shared_log(name, shared_log=shared_log)
    if as_json:
        say_json({"name": moved.name, "id": moved.id, "shared_log": shared_log, "slot": moved.snapshot.slot})
    else:
        say(f"{moved.name} is in the shared log {shared_log}, at slot {moved.snapshot.slot}")


def purge(
    url: TableUrl,
    older_than: Annotated[float, typer.Option("--older-than", metavar="SECONDS", help="How long ago the table must have been dropped.")],
    option: Option = None,
    table: Annotated[
        str | None, typer.Option("--id", help="The id of the table, if several tables of that name were dropped. Without it, the last one.")
    ] = None,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Delete the data files of a dropped table for good. Its log remains.

    The table cannot be restored after that.

    `objcat ls --dropped` lists the tables that can be purged. It is safe while others read and write. You may stop it at any time.
    """
    lake, name = lake_and_name(url, option)
    if dry_run:
        dropped = find_dropped(lake._context.catalog.refresh(), name, table, where=lake.fileio.url)
        timeline = log_of_lake(lake.fileio, dropped.binding.prefix)
        plan = plan_purge(timeline, dropped.table, older_than_s=older_than)
        paths = sorted({*plan.removes, *plan.leftovers})
        if as_json:
            say_json({"dry_run": True, "bound": plan.bound, "files": len(paths), "paths": paths})
            return
        for path in paths:
            say(path)
        say(f"would delete {len(paths):,} files of {name}, for good; nothing was changed")
        return
    with progress(f"purging {name}", shown=not as_json):
        done = lake.purge_table(name, older_than_s=older_than, table=table)
    if as_json:
        say_json(asdict(done))
    else:
        say(f"{name} is purged: {done.files:,} files were deleted")
