"""One process of a run: it writes, serves, erases or mirrors, again and again, and says in a file what came of each call."""

from __future__ import annotations

import os
import random
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import objcat
from fileio.errors import FileIOError
from objcat.errors import CommitConflict, CommitUnknown, NotErased, SnapshotExpired, WriterFenced
from objcat.mirror.model import CorruptMirror, MirrorNotRestarted, MirrorSlotTaken
from tests.chaos.worker import HASTY
from tests.mirror.chaos.auditor import TABLE
from tests.mirror.histories import people

KEYS = 40
ERASED_FROM = 1000
"""Keys from here on are written to be erased."""
BUCKETS_MAX = 8
SILENT_S = 5
"""A writer that was silent for so long is dead to erasures."""
ALLOWED = (
    FileIOError,
    *(CommitConflict, CommitUnknown, WriterFenced, SnapshotExpired, NotErased),
    *(CorruptMirror, MirrorNotRestarted, MirrorSlotTaken),
)
"""What a call may end in when answers are lost and others are killed."""
Role = Literal["write", "serve", "erase", "mirror"]


@dataclass(frozen=True, slots=True)
class MirrorJob:
    """name: of this process, unique. directory: where it says what it does, and where `stop` ends it."""

    url: str
    options: Mapping[str, Any]
    role: Role
    name: str
    seed: int
    directory: str
    seconds_max: float


def main(job: MirrorJob) -> None:
    """The process."""
    chance = random.Random(f"{job.seed} {job.name}")
    place = Path(job.directory)
    said = os.open(place / f"{job.name}.said", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    until_s = time.monotonic() + job.seconds_max
    table: objcat.Table | None = None
    while not (place / "stop").exists() and time.monotonic() < until_s:
        try:
            if table is None:
                table = objcat.connect(job.url, job.options, policy=HASTY).table(TABLE)
            what = ROLES[job.role](table, chance)
        except ALLOWED as error:
            what = f"{job.role}: {type(error).__name__}"
        except BaseException:
            (place / f"{job.name}.broke").write_text(traceback.format_exc())
            raise
        os.write(said, f"{what}\n".encode())


def write(table: objcat.Table, chance: random.Random) -> str:
    work = chance.choices(["upsert", "delete", "delete where"], [7, 2, 1])[0]
    if work == "upsert":
        table.upsert(people(*chance.sample(range(KEYS), chance.randint(1, 6)), value=chance.randrange(1000)))
    elif work == "delete":
        table.delete([{"id": key} for key in chance.sample(range(KEYS), 2)])
    else:
        table.delete(f"value < {chance.randrange(100)}")
    return work


def serve(table: objcat.Table, chance: random.Random) -> str:
    work = chance.choices(list(SERVICES), [5, 3, 1, 1, 1])[0]
    SERVICES[work](table, chance)
    time.sleep(chance.uniform(0, 0.3))
    return work


def split(table: objcat.Table, _: random.Random) -> object:
    count = table._context.latest.refresh().state[table.id].bucket_count("")
    return table.maintenance.split_buckets(count=2 * count) if 2 * count <= BUCKETS_MAX else None


def restore(table: objcat.Table, _: random.Random) -> object:
    snapshot = table.refresh()
    return table.restore(to=max(snapshot.log.marks(table.id).bound, snapshot.slot - 3))


SERVICES: Mapping[str, Callable[[objcat.Table, random.Random], object]] = {
    "compact": lambda table, _: table.maintenance.compact(),
    "clean": lambda table, chance: table.maintenance.clean(keep_slots=chance.choice([2, 10])),
    "split": split,
    "restore": restore,
    "note": lambda table, chance: table.set_properties({"note": str(chance.randrange(9))}),
}


def erase(table: objcat.Table, chance: random.Random) -> str:
    key = ERASED_FROM + chance.randrange(100)
    table.upsert(people(key, value=777))
    table.erase([{"id": key}], older_than_s=SILENT_S)
    time.sleep(chance.uniform(0.5, 2))
    return "erase"


def mirror(table: objcat.Table, _: random.Random) -> str:
    written = sum(report.written for report in table.maintenance.mirror())
    if not written:
        time.sleep(0.02)
    return "mirror" if written else "nothing to mirror"


ROLES: Mapping[Role, Callable[[objcat.Table, random.Random], str]] = {"write": write, "serve": serve, "erase": erase, "mirror": mirror}
