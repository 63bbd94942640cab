"""A pipeline of two hops, under chaos: databases write to one table, another follows it by its changes, and a third holds sums of that one.

Who derives may run twice, stand still in the middle, and be killed; sums that are added up then show every change that counted twice or not
at all.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

import objcat
from fileio.errors import FileIOError
from objcat.common.validation import TableType
from tests.chaos.journal import Journal
from tests.chaos.operations import Said, Step, acknowledged, resolution, under_way
from tests.chaos.worker import HASTY, perform, stop_file

CHANGES, COPY, TOTALS = "changes", "copy", "totals"
TABLES = (CHANGES, COPY, TOTALS)
CHANGES_SCHEMA = pa.schema(
    [pa.field("db", pa.string(), nullable=False), pa.field("id", pa.int64(), nullable=False), ("city", pa.string()), ("amount", pa.int64())]
)
TOTALS_SCHEMA = pa.schema([pa.field("city", pa.string(), nullable=False), ("total", pa.int64()), ("n", pa.int64())])
DATABASES, KEYS, CITIES = ("crm", "shop", "till"), 12, ("Cairo", "Lima", "Oslo", "Rome")
IDLE_S = 0.02
COMPACTIONS = 0.1
"""Of the writes of a database, how many a compaction follows."""

Work = Literal["feeds", "copies", "sums"]


@dataclass(frozen=True, slots=True)
class Stage:
    """What a process is told; as `tests.chaos.worker.Job`."""

    url: str
    options: Mapping[str, Any]
    name: str
    seed: int
    directory: str
    work: Work
    seconds_max: float


def create_tables(lake: objcat.Lake, kinds: Mapping[str, TableType]) -> None:
    """The tables of the pipeline. kinds: by name."""
    lake.create_table(
        CHANGES,
        CHANGES_SCHEMA,
        key=["db", "id"],
        partition_by=["db"],
        index=objcat.BucketIndex(2),
        table_type=kinds.get(CHANGES, "merge_on_read"),
    )
    lake.create_table(COPY, CHANGES_SCHEMA, key=["db", "id"], index=objcat.BucketIndex(2), table_type=kinds.get(COPY, "merge_on_read"))
    lake.create_table(TOTALS, TOTALS_SCHEMA, key=["city"], index=objcat.BucketIndex(2), table_type=kinds.get(TOTALS, "merge_on_read"))


def run_stage(stage: Stage) -> None:
    """Be one process of the pipeline until told to stop."""
    journal = Journal(Path(stage.directory) / f"{stage.name}.journal")
    deadline_s = time.monotonic() + stage.seconds_max
    chance = random.Random(f"{stage.seed} {stage.name}")
    tables = _opened(stage)
    steps: Mapping[Work, Callable[[], Step | None]] = {
        "feeds": lambda: feed(tables[CHANGES], chance),
        "copies": lambda: copy(tables[CHANGES], tables[COPY], net=chance.random() < 0.7),
        "sums": lambda: add_up(tables[COPY], tables[TOTALS]),
    }
    number = 0
    while not Path(stop_file(Path(stage.directory))).exists() and time.monotonic() < deadline_s:
        try:
            step = steps[stage.work]()
        except FileIOError:
            continue  # the faults of the run meet reads too
        except Exception as error:  # noqa: BLE001 - whatever it is, it is journalled
            step = Step({}, partial(_again, error))
        if step is None:
            time.sleep(IDLE_S)
            continue
        number += 1
        perform(journal, stage.name, f"{stage.name}.{number}", stage.work, step)
        if stage.work != "feeds":
            time.sleep(IDLE_S)


def _again(error: Exception) -> Said:
    raise error


def _opened(stage: Stage) -> dict[str, objcat.Table]:
    while True:
        try:
            lake = objcat.connect(stage.url, stage.options, policy=HASTY)
            return {name: lake.table(name) for name in TABLES}
        except FileIOError:
            continue


def feed(table: objcat.Table, chance: random.Random) -> Step:
    """What one of many databases has done: rows that came, changed, moved to another city or went."""
    if chance.random() < COMPACTIONS:
        return Step({}, lambda: served(table.maintenance.compact()))
    db = chance.choice(DATABASES)
    keys = chance.sample(range(KEYS), chance.randint(1, 5))
    writes: dict[int, str | None] = dict.fromkeys(keys)
    if chance.random() < 0.3:
        return Step(writes, lambda: acknowledged(table.delete([{"db": db, "id": key} for key in keys])))
    rows = [{"db": db, "id": key, "city": chance.choice(CITIES), "amount": chance.randint(-100, 100)} for key in keys]
    return Step(writes, lambda: acknowledged(table.upsert(rows)))


def copy(source: objcat.Table, target: objcat.Table, *, net: bool) -> Step | None:
    """The first hop: the rows of the changes. None when there are none."""
    reached = target.app_version("copy")
    changes = source.changes(since=-1 if reached is None else reached, net=net)
    if changes.until == changes.since:
        return None
    return Step(_SOME, lambda: derived(target.apply_changes(changes, app_id="copy", metadata=between(changes))))


def add_up(source: objcat.Table, target: objcat.Table) -> Step | None:
    """The second hop: what the changes add to sums, and take away from them. None when there are none."""
    reached = target.app_version("sums")
    changes = source.changes(since=-1 if reached is None else reached, net=True)
    if changes.until == changes.since:
        return None
    more = differences(changes.to_arrow())
    if not more.num_rows:
        return None
    merge = (
        target.merge(more)
        .when_matched_delete(where="target.n + source.n = 0")
        .when_matched_update({"total": "target.total + source.total", "n": "target.n + source.n"})
        .when_not_matched_insert()
    )
    app = objcat.AppVersion(app="sums", version=changes.until, since=changes.since)
    return Step(_SOME, lambda: derived(merge.execute(app=app, metadata=between(changes))))


_SOME: Mapping[int, str | None] = {0: None}
"""A journal's sign of a call that writes."""


def between(changes: Any) -> dict[str, str]:
    """Metadata of a commit that brings changes."""
    return {"since": str(changes.since), "until": str(changes.until)}


def differences(changes: pa.Table) -> pa.Table:
    """By city, by how much its sum and its number of rows change."""
    is_gone = pc.is_in(changes.column("_change_type"), value_set=pa.array(["update_before", "delete"]))
    sign = pc.if_else(is_gone, -1, 1)
    signed = pa.table({"city": changes.column("city"), "total": pc.multiply(changes.column("amount"), sign), "n": sign})
    sums = signed.group_by("city").aggregate([("total", "sum"), ("n", "sum")]).select(["city", "total_sum", "n_sum"])
    sums = sums.rename_columns(["city", "total", "n"])
    return sums.filter(pc.or_(pc.not_equal(sums.column("total"), 0), pc.not_equal(sums.column("n"), 0)))


def derived(result: Any) -> Said:
    """What came of a commit that counts once; somebody else may have made it."""
    if result is None:
        return "served", {}
    if result.already_applied:
        return "failed", {"error": "AlreadyApplied", "message": f"its twin wrote these changes at slot {result.slot}"}
    return acknowledged(result)


def served(result: Any) -> Said:
    return "served", {} if result is None or result.slot is None else {"slot": result.slot, "txn": result.txn}


def roll_back(tables: Mapping[str, objcat.Table]) -> Said:
    """Settle every transaction of every table that is under way, as if their writers were all dead."""
    return "settled", {"resolved": [resolution(txn, table.resolve(txn)) for table in tables.values() for txn in under_way(table)]}


def recomputed(rows: list[dict[str, Any]]) -> dict[str, tuple[int, int]]:
    """The sums of all rows, by city."""
    totals: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    for row in rows:
        totals[row["city"]] += row["amount"]
        counts[row["city"]] += 1
    return {city: (totals[city], counts[city]) for city in counts}
