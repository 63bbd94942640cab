"""`objcat archive`, `objcat collect` and `objcat purge`: what a log and a lake need once in a while."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer

from objcat.cli.common import Json, Option, TableUrl, parse_option_arguments
from objcat.lake import connect, find_log, split_url
from objcat.timeline import Committer
from objcat.timeline.archive import archive as archive_log
from objcat.timeline.collect import collect_checkpoints


def archive(
    url: TableUrl,
    option: Option = None,
    keep_slots: Annotated[int, typer.Option("--keep-slots", help="How many of the newest slots stay as they are.")] = 1000,
    as_json: Json = False,
) -> None:
    """Move entries below the newest checkpoint to history files: fewer and smaller objects, and readers see no difference.

    Safe beside everything, and may be stopped at any moment.
    """
    done = archive_log(find_log(url, parse_option_arguments(option or [])), keep_slots=keep_slots)
    if as_json:
        print(json.dumps(asdict(done)))
    elif done.tombstones:
        print(f"{done.tombstones:,} slots below slot {done.end_slot} were archived, in {len(done.files)} history files")
    else:
        print("nothing to archive")


def collect(
    url: TableUrl,
    option: Option = None,
    keep: Annotated[int, typer.Option("--keep", help="How many of the newest checkpoints stay.")] = 2,
    as_json: Json = False,
) -> None:
    """Delete old checkpoints and what no checkpoint names; those that savepoints need stay. Every slot can still be looked at.

    Safe beside everything, and may be stopped at any moment.
    """
    timeline = find_log(url, parse_option_arguments(option or []))
    done = collect_checkpoints(timeline, Committer(timeline.fileio), keep=keep)
    if as_json:
        print(json.dumps(asdict(done)))
    elif done.slot is None:
        print("nothing to collect")
    else:
        print(f"slot {done.slot}: checkpoints below slot {done.bound} are collected, {done.objects:,} objects were deleted")


def purge(
    url: TableUrl,
    older_than: Annotated[float, typer.Option("--older-than", metavar="SECONDS", help="How long ago it must have been dropped.")],
    option: Option = None,
    table: Annotated[str | None, typer.Option("--id", help="Its id, where several of that name were dropped; else the last one.")] = None,
    as_json: Json = False,
) -> None:
    """Delete the data files of a dropped table, for good: it cannot be brought back any more. Its log stays.

    `objcat ls --dropped` lists the tables that can be purged. Safe beside everything, and may be stopped at any moment.
    """
    above, name = split_url(url)
    done = connect(above, parse_option_arguments(option or [])).purge_table(name, older_than_s=older_than, table=table)
    if as_json:
        print(json.dumps(asdict(done)))
    else:
        print(f"{name} is purged: {done.files:,} files were deleted")
