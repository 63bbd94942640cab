"""Writers of the demo. As a program: one local writer, which reads steps from stdin and prints its commits, one per line."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa
import pyarrow.feather

import objcat
from devkit.demo_flights import Step, rows_of
from fileio.env import SystemEnv

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TABLE = "flights"
CATALOG = "demo"
"""The name of the lake in Spark."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where the table is. `flown`: a file with the flights of January, for the processes of writers."""

    url: str
    options: Mapping[str, str]
    flown: str


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit that its writer acknowledged."""

    writer: str
    step: Step
    slot: int
    txn: str
    committed_at_ms: int
    rows: int
    slots_lost: int
    requests: Mapping[str, int]


class WriterDied(Exception):
    """The process of a writer ended without an answer. The outcome of its last step is unknown."""


class Writer(Protocol):
    """Makes commits, one at a time."""

    @property
    def name(self) -> str:
        """The name in the log."""

    def write(self, step: Step) -> Commit:
        """Commit the step. Safe for many threads. Raises WriterDied."""


class MarkedEnv(SystemEnv):
    """The real world, except that every id begins with a mark. So one can tell whose transaction a file belongs to."""

    def __init__(self, mark: str) -> None:
        super().__init__()
        self._mark = mark

    def new_id(self) -> str:
        """The mark and a random rest."""
        return self._mark + super().new_id()[len(self._mark) :]


class LocalWriter:
    """A writer in its own process, which starts at once. `mark`: the beginning of the ids of its transactions."""

    def __init__(self, name: str, *, mark: str) -> None:
        self.name = name
        self.mark = mark
        self._lock = threading.Lock()
        command = [sys.executable, "-m", "devkit.demo_writer"]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True)

    def open(self, place: Place) -> None:
        """Open the table, which must exist. Raises WriterDied."""
        self._ask({"name": self.name, "mark": self.mark, **asdict(place)}, what="opening of the table")

    def write(self, step: Step) -> Commit:
        """Send the step to the process and wait for its commit."""
        return Commit(**{**self._ask(asdict(step), what=str(step)), "step": step})

    def close(self) -> None:
        """End the process. May be called again."""
        self.process.kill()
        self.process.communicate()

    def _ask(self, message: Mapping[str, Any], *, what: str) -> dict[str, Any]:
        """Send one line and wait for the line that answers it."""
        assert self.process.stdin is not None and self.process.stdout is not None
        try:
            with self._lock:
                self.process.stdin.write(json.dumps(message) + "\n")
                self.process.stdin.flush()
                answer = self.process.stdout.readline()
        except BrokenPipeError as error:
            raise WriterDied(f"{self.name} was dead before the {what}. Its own message is above.") from error
        if not answer.endswith("\n"):
            raise WriterDied(f"{self.name} died during the {what}. Its own message is above.")
        told: dict[str, Any] = json.loads(answer)
        return told


class SparkWriter:
    """A writer by `spark.sql`, whose executors write the files."""

    name = "spark"

    def __init__(self, spark: SparkSession, place: Place, flown: pa.Table) -> None:
        import objcat.spark

        self._spark = spark
        self._flown = flown
        objcat.spark.views(spark, objcat.connect(place.url, place.options, env=MarkedEnv("0")), catalog=CATALOG)

    def write(self, step: Step) -> Commit:
        """Insert the rows of the step by a statement. What it committed is in the history of the table."""
        # Use one chunk: PySpark reads an Arrow table with an empty first chunk as an empty table.
        rows = self._spark.createDataFrame(rows_of(self._flown, step, self.name).combine_chunks())
        self._spark.sql(f"INSERT INTO {CATALOG}.{TABLE} BY NAME SELECT * FROM {{rows}}", rows=rows)
        (done,) = self._spark.sql(
            f"SELECT snapshot_id, txn, unix_millis(made_current_at) AS at_ms, rows, attempts FROM {CATALOG}.{TABLE}.history "
            "WHERE writer LIKE '%spark%' ORDER BY snapshot_id DESC LIMIT 1"
        ).collect()
        return Commit(self.name, step, done.snapshot_id, done.txn, done.at_ms, done.rows, (done.attempts or 1) - 1, {})


def commit(table: objcat.Table, rows: Any, step: Step, writer: str) -> Commit:
    """Upsert the rows of a step. The log records the writer and the step."""
    done = table.upsert(rows, metadata={"writer": writer, "step": str(step)})
    return Commit(writer, step, done.slot, done.txn, done.committed_at_ms, done.rows, done.slots_lost, done.requests)


def main() -> None:
    """Read where the table is, then one step per line, and print one commit per line."""
    job = json.loads(sys.stdin.readline())
    flown = pyarrow.feather.read_table(Path(job["flown"]))
    table = objcat.connect(job["url"], job["options"], env=MarkedEnv(job["mark"])).table(TABLE)
    print(json.dumps({"slot": table.snapshot.slot}), flush=True)
    for line in sys.stdin:
        step = Step(**json.loads(line))
        done = commit(table, rows_of(flown, step, job["name"]), step, job["name"])
        print(json.dumps(asdict(done)), flush=True)


if __name__ == "__main__":
    main()
