"""Other tools beside refreshes of derived tables: dbt on a lake of objcat and on Delta Lake, and Spark's declarative pipelines.

Each is a process of its own, whose session of Spark stays. Its sources get the same changes, outside the times, and its rows are compared.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import psutil
import pyarrow as pa
import pyarrow.parquet as pq

import objcat
from benchmarks.install import worker_environment
from benchmarks.measured import RunFailed
from devkit import prepare
from devkit.engines import ENGINES
from devkit.environments import locked_artifacts, locked_environment
from devkit.paths import ROOT

MEMORY, CORES = "3g", 2
SOURCES = ("trips", "drivers", "cities")
FILES = 4
"""In as many files Spark finds a source, so that each core has some."""
Queries = Mapping[str, tuple[str, list[str]]]


def forgets(query: str, way: str) -> bool:
    """Whether a side cannot follow the query: a merge does not know the groups that changed rows left."""
    return way == "merge" and " GROUP BY " in query


def write_source(rows: pa.Table, place: Path) -> None:
    """Replace a folder of Parquet files."""
    place.mkdir(exist_ok=True)
    share = -(-rows.num_rows // FILES)
    for number in range(FILES):
        pq.write_table(rows.slice(number * share, share), place / f"{number}.parquet")


class DerivedPeer(ABC):
    """A tool. A context manager.

    Args:
        lake: with the sources.
        place: a folder for everything that the tool writes.
        queries: by name a text and its key.
    """

    name: ClassVar[str]
    ways: ClassVar[Sequence[str]]
    """How it follows a query."""
    module: ClassVar[str]

    def __init__(self, lake: objcat.Lake, place: Path, queries: Queries) -> None:
        self.lake = lake
        self.place = place
        self.queries = queries
        place.mkdir(parents=True)
        self._log = place / "output.txt"
        python, variables, settings = self._needs()
        told = {"queries": queries, "memory": MEMORY, "cores": CORES, **settings}
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [str(python), "-m", self.module, str(place), json.dumps(told)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=worker_environment(python) | {"SPARK_LOCAL_IP": "127.0.0.1", "DO_NOT_TRACK": "1", **variables},
                cwd=place,
            )

    @abstractmethod
    def _needs(self) -> tuple[Path, Mapping[str, str], Mapping[str, Any]]:
        """The Python of the process, variables of its own, and settings. Installs what is missing."""

    def load(self) -> None:
        """Make the sources."""
        folders = {name: self.place / name for name in SOURCES}
        for name, folder in folders.items():
            write_source(self.lake.table(name).scan().to_arrow(), folder)
        self._ask("load", sources={name: str(folder) for name, folder in folders.items()})

    @abstractmethod
    def change(self, batch: pa.Table) -> None:
        """Bring the trips that changed to the sources of the tool. Those of the lake have changed."""

    @abstractmethod
    def run(self, name: str, way: str, since: int) -> float:
        """The seconds of a run. since: the number of the last change that it followed."""

    @abstractmethod
    def rows(self, name: str, way: str) -> pa.Table:
        """The rows of the result of a query."""

    def about(self) -> dict[str, str]:
        """Versions."""
        return dict(self._ask("about"))

    def _ask(self, what: str, **arguments: Any) -> Any:
        """The answer of the process. Raises RunFailed."""
        assert self._process.stdin is not None and self._process.stdout is not None
        line = ""
        try:
            self._process.stdin.write(json.dumps({"do": what, **arguments}) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            pass  # It ended, which the missing answer says.
        said: dict[str, Any] = json.loads(line) if line else {"ok": False, "error": "its process ended"}
        if not said["ok"]:
            raise RunFailed(f"{self.name} failed at {what}: {said['error']}\n{self._log.read_text(errors='replace')[-2500:]}")
        return said["found"]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        children = psutil.Process(self._process.pid).children(recursive=True) if self._process.poll() is None else []
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        try:
            self._process.wait(90)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for child in children:
            if child.is_running():
                child.kill()


class DbtOnLake(DerivedPeer):
    """dbt by the adapter of this repository, over the sources of the lake itself."""

    name = "dbt, objcat"
    ways = ("merge", "table")
    module = "benchmarks.peers.derived_dbt"

    def _needs(self) -> tuple[Path, Mapping[str, str], Mapping[str, Any]]:
        paths = [ROOT, ROOT / "dbt-objcat", prepare.dbt()]
        settings = {"kind": "objcat", "url": self.lake.fileio.url}
        return Path(sys.executable), {"PYTHONPATH": os.pathsep.join(map(str, paths))}, settings

    def load(self) -> None:
        """They are there."""

    def change(self, batch: pa.Table) -> None:
        """They have changed."""

    def run(self, name: str, way: str, since: int) -> float:
        """As `DerivedPeer.run`."""
        return float(self._ask("run", model=f"{name}_{way}", since=since))

    def rows(self, name: str, way: str) -> pa.Table:
        """As `DerivedPeer.rows`."""
        return self.lake.table(f"made.{name}_{way}").scan().to_arrow()


class DbtOnDelta(DerivedPeer):
    """dbt by dbt-spark, in a session with Delta Lake."""

    name = "dbt, Delta"
    ways = ("merge", "table")
    module = "benchmarks.peers.derived_dbt"

    def _needs(self) -> tuple[Path, Mapping[str, str], Mapping[str, Any]]:
        engine = ENGINES["spark"]
        settings = {"kind": "delta", "jars": [str(jar) for jar in locked_artifacts(engine.artifacts)]}
        return locked_environment(engine.lock), {"PYTHONPATH": os.pathsep.join(map(str, [ROOT, prepare.dbt()]))}, settings

    def change(self, batch: pa.Table) -> None:
        """As `DerivedPeer.change`."""
        path = self.place / "batch.parquet"
        pq.write_table(batch, path)
        self._ask("change", path=str(path))

    def run(self, name: str, way: str, since: int) -> float:
        """As `DerivedPeer.run`."""
        return float(self._ask("run", model=f"{name}_{way}", since=since))

    def rows(self, name: str, way: str) -> pa.Table:
        """As `DerivedPeer.rows`."""
        return pq.read_table(self._ask("rows", model=f"{name}_{way}", path=str(self.place / "rows")))


class Pipelines(DerivedPeer):
    """Spark's declarative pipelines, over Parquet files of the sources, which are written anew for each change."""

    name = "pipelines"
    ways = ("view",)
    module = "benchmarks.peers.derived_pipelines"

    def _needs(self) -> tuple[Path, Mapping[str, str], Mapping[str, Any]]:
        return Path(sys.executable), {"PYTHONPATH": os.pathsep.join(map(str, [ROOT, prepare.spark_connect()]))}, {}

    def change(self, batch: pa.Table) -> None:  # noqa: ARG002 - all rows are written
        """As `DerivedPeer.change`."""
        write_source(self.lake.table("trips").scan().to_arrow(), self.place / "trips")

    def run(self, name: str, way: str, since: int) -> float:  # noqa: ARG002 - it computes everything at each run
        """As `DerivedPeer.run`. The first time it is the command `spark-pipelines run`, with the start of its processes."""
        return float(self._ask("command" if since < 0 else "run", name=name))

    def rows(self, name: str, way: str) -> pa.Table:  # noqa: ARG002 - it has one
        """As `DerivedPeer.rows`."""
        return pq.read_table(self._ask("rows", name=name))


DERIVED_PEERS: Mapping[str, type[DerivedPeer]] = {"dbt": DbtOnLake, "dbt-delta": DbtOnDelta, "pipelines": Pipelines}
"""By what `--peers` calls them."""
