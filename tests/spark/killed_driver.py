"""A driver of its own: `python -m tests.spark.killed_driver DIRECTORY PLAN`. Does works on two tables that are not in their logs, in order.

PLAN is JSON: `works` by name; `kill`, the one that does not end; `point`, where it dies; `request`, at which one of the driver's own.
What was acknowledged is in `journal`.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

import objcat
from fileio.local.backend import LocalBackend
from objcat.common.validation import TableType
from objcat.spark import engine, frames, partition_moves, services
from objcat.spark.worker_task import BatchFunction
from objcat.timeline.entry import Action, Entry
from tests.spark.native_driver import QUIET

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("p", pa.int64(), nullable=False), pa.field("v", pa.int64())])
KINDS: tuple[TableType, ...] = ("merge_on_read", "copy_on_write")
WAIT_S_MAX = 60
REQUESTS = ("get", "head", "list_page", "put", "append", "delete_batch", "start_upload")

Rows = dict[int, int]


def frame(spark: SparkSession, begin: int, end: int, v: str, *, step: int = 1) -> DataFrame:
    return spark.range(begin, end, step, 2).selectExpr("id", "id % 2 p", f"cast({v} as long) v")


def merge(table: Any, spark: SparkSession, told: Mapping[str, str]) -> object:
    """Done twice it would show."""
    merging = table.merge(frame(spark, 200, 500, "0")).when_matched_update({"v": "target.v + 1"}).when_not_matched_insert()
    return merging.execute(metadata=told)


Do = Callable[[Any, SparkSession, Mapping[str, str]], object]
WORKS: dict[str, tuple[Do, Callable[[Rows], Rows]]] = {
    "insert": (
        lambda table, spark, told: table.insert(frame(spark, 0, 300, "id"), metadata=told),
        lambda rows: rows | {i: i for i in range(300)},
    ),
    "upsert": (
        lambda table, spark, told: table.upsert(frame(spark, 100, 400, "id + 1000"), metadata=told),
        lambda rows: rows | {i: i + 1000 for i in range(100, 400)},
    ),
    "merge": (merge, lambda rows: rows | {i: rows[i] + 1 if i in rows else 0 for i in range(200, 500)}),
    "delete": (
        lambda table, spark, told: table.delete("v < 50 or v > 1300", metadata=told, spark=spark),
        lambda rows: {key: value for key, value in rows.items() if 50 <= value <= 1300},
    ),
    "compact": (lambda table, spark, _: table.maintenance.compact(spark=spark), lambda rows: rows),
    "insert_overwrite": (
        lambda table, spark, told: table.insert_overwrite(frame(spark, 0, 100, "7", step=2), metadata=told),
        lambda rows: {key: value for key, value in rows.items() if key % 2} | dict.fromkeys(range(0, 100, 2), 7),
    ),
    "overwrite": (
        lambda table, spark, told: table.overwrite(frame(spark, 0, 50, "8"), metadata=told),
        lambda rows: dict.fromkeys(range(50), 8),
    ),
}
"""By name: what a driver does, and what it makes of the rows."""


def work_of(entry: Entry) -> str | None:
    """Which work a slot is the commit of."""
    return "compact" if entry.action is Action.COMPACTION else entry.metadata.get("work")


def done_to(table: Any) -> list[str]:
    """The works that are in a log, in its order."""
    return [work for entry in table._context.timeline.log.read_after(-1) if (work := work_of(entry)) is not None]


def main(directory: str, plan: str) -> None:
    told = json.loads(plan)
    builder = SparkSession.builder.master("local[2]").appName("killed")
    for name, value in {**QUIET, "spark.sql.warehouse.dir": f"{directory}/warehouse"}.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    frames.ROWS_MAX = 0  # Small frames go through jobs too.
    lake = objcat.connect(f"{directory}/lake")
    for kind in KINDS:
        table = lake.table(kind)
        done = done_to(table)
        for work in told["works"]:
            if work in done or (work == "compact" and kind == "copy_on_write"):
                continue
            if told["kill"] == f"{kind} {work}":
                die_at(told["point"], told.get("request"))
            WORKS[work][0](table, spark, {"work": work})
            with Path(directory, "journal").open("a") as journal:
                journal.write(f"{kind} {work}\n")
    spark.stop()


# ---- ways to die


def die_at(point: str, request: int | None) -> None:
    """Have the next work die.

    point: in the first task that has done its own (`task`: driver and JVM, `driver`: the driver alone, whose JVM goes on as long as it
    likes, `term`: as it, by SIGTERM, `jvm`: the JVM alone, by SIGTERM); before or after the put of its slot (`slot`, `landed`); or after a
    request of the driver.
    """
    if point in ("task", "driver", "term", "jvm"):
        _in_a_task(point)
    else:
        _at_a_request(point, request)


def _in_a_task(point: str) -> None:
    rooms: list[Any] = [engine, services, partition_moves]
    own, driver = rooms[0].spark_task, os.getpid()

    def lethal(*given: Any) -> BatchFunction:
        function = own(*given)

        def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            told = list(function(batches))
            with suppress(ProcessLookupError):
                if point == "task":
                    os.killpg(driver, signal.SIGKILL)
                elif point == "jvm":
                    # This process is forked from a daemon, which is a child of the JVM.
                    os.kill(int(Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()[1]), signal.SIGTERM)
                    time.sleep(WAIT_S_MAX)
                else:
                    os.kill(driver, signal.SIGKILL if point == "driver" else signal.SIGTERM)
            yield from told

        return run

    for room in rooms:
        room.spark_task = lethal


def _at_a_request(point: str, number: int | None) -> None:
    lock, seen = threading.Lock(), 0

    def wrap(name: str) -> None:
        did = getattr(LocalBackend, name)

        def called(this: LocalBackend, *given: Any, **named: Any) -> Any:
            nonlocal seen
            with lock:
                seen += 1
                is_it = seen == number if number else name == "put" and "/log/" in given[0]
            if is_it and point == "slot":
                os.killpg(0, signal.SIGKILL)
            try:
                return did(this, *given, **named)
            finally:
                if is_it:
                    os.killpg(0, signal.SIGKILL)

        setattr(LocalBackend, name, called)

    for name in REQUESTS:
        wrap(name)


if __name__ == "__main__":
    main(*sys.argv[1:])
