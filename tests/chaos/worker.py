"""One process of a chaos run: does one random operation after the other, says in its journal what it is about to do and what came of it."""

from __future__ import annotations

import json
import random
import sys
import time
import traceback
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fileio.errors import FileIOError, NotFound
from fileio.write_outcomes import RetryPolicy
from objcat.errors import CommitConflict, CommitUnknown, SnapshotExpired, WriterFenced
from objcat.timeline import commit_group
from tests.chaos.journal import Journal
from tests.chaos.operations import OPERATIONS, Session, Step, choose, local_session, open_table

TABLE = "t"
HASTY = RetryPolicy(attempts_max=2, deadline_s=10, backoff_ms_first=5, backoff_ms_max=50)
"""Gives up early, so that outcomes stay unknown now and then."""


@dataclass(frozen=True, slots=True)
class Job:
    """What a process is told. name: of this process, unique. number: of this process, unique. seconds_max: it ends by itself after that,
    should whoever started it be gone."""

    url: str
    options: Mapping[str, Any]
    name: str
    number: int
    seed: int
    directory: str
    spark: bool
    seconds_max: float
    together: bool = False

    @property
    def stop(self) -> Path:
        """Once this file exists, processes end after the operation that they are at."""
        return stop_file(Path(self.directory))

    def to_json(self) -> str:
        return json.dumps(asdict(self))


def stop_file(directory: Path) -> Path:
    return directory / "stop"


def main(job: Job) -> None:
    journal = Journal(Path(job.directory) / f"{job.name}.journal")
    deadline_s = time.monotonic() + job.seconds_max
    session = _session(job)
    if job.together:
        commit_group.ASKS_AFTER_SLOTS = 0  # Few writers seldom lose two slots.
    number = 0
    while not job.stop.exists() and time.monotonic() < deadline_s:
        number += 1
        name = f"{job.name}.{number}"
        operation = choose(session)
        step = OPERATIONS[operation][1](session, name)
        perform(journal, job.name, name, operation, step)


def perform(journal: Journal, handle: str, name: str, operation: str, step: Step) -> None:
    """Take one step and journal it. Raises what the contract does not know."""
    journal.begin(name, handle, operation, step.writes)
    try:
        outcome, said = step.run()
    except CommitUnknown as error:
        outcome, said = "unknown", {"txn": error.txn}
    except (CommitConflict, WriterFenced, SnapshotExpired, FileIOError) as error:
        outcome, said = "failed", {"error": type(error).__name__, "message": str(error)}
        if isinstance(error, NotFound) and operation == "scan":
            outcome = "broke"  # a reader past the bound is told SnapshotExpired, never that a file is missing
    except Exception:
        journal.end(name, "broke", {"error": traceback.format_exc()})
        raise
    journal.end(name, outcome, said)


def _session(job: Job) -> Session:
    chance = random.Random(f"{job.seed} {job.name}")
    while True:
        try:
            table, store = open_table(job.url, job.options, TABLE, policy=HASTY)
            break
        except FileIOError:
            continue  # the faults of the run meet it here too
    fresh_key = 1_000_000 * (job.number + 1)
    if not job.spark:
        return local_session(table, store, chance, fresh_key)
    spark = _spark()
    return Session(
        table,
        store,
        chance,
        lambda rows: spark.createDataFrame(rows, "id long, value string" if "value" in rows[0] else "id long"),
        lambda scan: _read_by_spark(table, scan, spark),
        fresh_key,
    )


def _read_by_spark(table: Any, scan: Any, spark: Any) -> list[dict[str, Any]]:
    """Rows by an action of Spark's, which ends with an error of its own where files are missing: that is for those of a cleaned slot."""
    try:
        return [row.asDict() for row in scan.to_spark(spark).collect()]
    except Exception as error:
        if "CorruptTable" in str(error) or "FAILED_READ_FILE.FILE_NOT_EXIST" in str(error):
            table.refresh()
            table.scan(as_of=scan.plan.snapshot.slot)  # SnapshotExpired when it was cleaned; any other missing file is lost
        raise


def _spark() -> Any:
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").appName("chaos")
    quiet = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
    }
    for key, value in quiet.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    return session


if __name__ == "__main__":
    main(Job(**json.loads(sys.argv[1])))
