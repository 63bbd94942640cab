"""The drawn table where Spark takes part: it does some of the writes and services, and some of the reads, and this process the others.

`./dev run python -m tests.combinations.with_spark 1000 1020` runs the seeds from 1000 on, below 1020.
With `several` after it they are tables with several ordering columns.
"""

from __future__ import annotations

import os
import random
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

import objcat
from devkit import toolchain
from fileio.env import default_env
from fileio.testing import FakeEnv
from objcat.metadata.table_spec import MemoryIndexSpec
from objcat.table.change_feed import ChangeFeed
from tests.combinations.seeds import run, run_all
from tests.combinations.tables import DrawnTable
from tests.combinations.values import Column, Values


class _Punctual(FakeEnv):
    """One that works at once in the calling thread too, but tells the time."""

    def now_ms(self) -> int:
        return default_env().now_ms()


class SparkTable(DrawnTable):
    """On local disk, which Spark's workers see too."""

    steps = 9

    def __init__(self, seed: int, session: SparkSession, place: Path) -> None:
        self._session = session
        self._place = place
        self._chance = random.Random(f"Spark {seed}")
        super().__init__(seed)

    def opened(self, seed: int) -> objcat.Lake:
        return objcat.connect(self._place / f"{seed}", env=_Punctual(seed))

    def wait(self, hours: int) -> None:
        """Commit times follow the clock of the store, which waits for nobody."""

    def batch(self, rows: Sequence[Values], columns: Sequence[Column] | None = None, *, marks: Sequence[bool] | None = None) -> Any:
        made = super().batch(rows, columns, marks=marks)
        # What a handle remembers of keys no worker knows.
        if isinstance(self.spec.index, MemoryIndexSpec) or not self._is_spark():
            return made
        self.tell("- by Spark")
        return self._session.createDataFrame(made, from_arrow_schema(made.schema, prefer_timestamp_ntz=True))

    def spark(self) -> SparkSession | None:
        if not self._is_spark():
            return None
        self.tell("- by Spark")
        return self._session

    def sql(self, text: str) -> dict[str, Any]:
        # Without a key only this process updates rows.
        if isinstance(self.spec.index, MemoryIndexSpec) or (not self.key and text.startswith("UPDATE")) or not self._is_spark():
            return super().sql(text)
        self.tell("- by Spark:", text)
        (told,) = self.lake.sql(text, self._session).toArrow().to_pylist()
        return dict(told)

    def read(self, what: objcat.Scan | ChangeFeed) -> pa.Table:
        # There are many more reads than writes.
        if self._chance.random() < 0.75:
            return super().read(what)
        return what.to_spark(self._session).toArrow().select(what.schema.names).cast(what.schema)

    def _is_spark(self) -> bool:
        return self._chance.random() < 0.5


class SeveralOrderingsOnSpark(SparkTable):
    """One with a key and several ordering columns."""

    several = True


def run_with(session: SparkSession, place: Path, seed: int, kind: type[SparkTable] = SparkTable) -> None:
    """All of a seed."""
    run(seed, kind(seed, session, place))


def main(first: int, end: int, kind: type[SparkTable]) -> int:
    os.environ["JAVA_HOME"] = str(toolchain.java_home())
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    with tempfile.TemporaryDirectory() as place:
        builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").config("spark.driver.host", "127.0.0.1")
        settings = {"spark.sql.shuffle.partitions": "2", "spark.sql.session.timeZone": "UTC", "spark.local.dir": place}
        for name, value in (settings | {"spark.driver.bindAddress": "127.0.0.1", "spark.ui.showConsoleProgress": "false"}).items():
            builder = builder.config(name, value)
        session = builder.getOrCreate()
        session.sparkContext.setLogLevel("OFF")
        try:
            return run_all(range(first, end), lambda seed: run_with(session, Path(place), seed, kind))
        finally:
            session.stop()


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2]), SeveralOrderingsOnSpark if sys.argv[3:] == ["several"] else SparkTable))
