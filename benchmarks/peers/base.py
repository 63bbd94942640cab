"""`Side`: what a side does for the benchmark (see `benchmarks.worker`). This module needs Python only."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.works import Layout, NotAvailable, Query, Statement

Rows = Sequence[Sequence[Any]]


@dataclass(frozen=True, slots=True)
class Store:
    """A bucket on an S3 server, which holds the tables. The keys are those of a server on loopback, and not secret."""

    endpoint: str
    bucket: str
    region: str
    access_key: str
    secret_key: str


@dataclass(frozen=True, slots=True)
class Settings:
    """directory: for everything that the side writes. memory: of Spark's driver, e.g. `3g`. jars: paths. store: for the tables, instead of
    the directory."""

    directory: Path
    memory: str
    cores: int
    jars: tuple[str, ...] = ()
    store: Store | None = None

    def root(self, scheme: str = "s3") -> str:
        """Where tables are: a directory, or the URL of a bucket."""
        return str(self.directory) if self.store is None else f"{scheme}://{self.store.bucket}"


@dataclass(slots=True)
class BenchTable:
    """A table of the benchmark. `state`: what the side stores of it. `versions`: after each commit, where the chain asks for them."""

    name: str
    layout: Layout
    state: dict[str, Any] = field(default_factory=dict)
    versions: list[Any] = field(default_factory=list)


class Side(ABC):
    """One side. Only writes, services and answers are timed. `NotAvailable` means that a side has no such operation."""

    settings: Settings

    @abstractmethod
    def start(self, settings: Settings) -> dict[str, str]:
        """Start, and report versions and the settings that matter."""

    @abstractmethod
    def create(self, table: BenchTable) -> str:
        """Create an empty table, as far as the side supports it. Returns where its files will be: a directory or a URL."""

    @abstractmethod
    def read(self, path: Path) -> Any:
        """A batch in the form that this side takes."""

    @abstractmethod
    def load(self, table: BenchTable, path: Path) -> str | None:
        """Fill the empty table from a Parquet file. Returns the called operation, when it is worth a word."""

    @abstractmethod
    def upsert(self, table: BenchTable, batch: Any) -> None:
        """One commit that inserts or replaces by key."""

    def append(self, table: BenchTable, batch: Any) -> None:
        """One commit of new rows of a table without a key."""
        raise NotAvailable(f"it does not append to {table.name} of {type(batch).__name__}")

    def delete(self, table: BenchTable, batch: Any) -> None:
        """One commit that deletes by key. `batch`: keys, some of which do not exist."""
        raise NotAvailable(f"it has no delete by key in {table.name} of {type(batch).__name__}")

    def compact(self, table: BenchTable) -> None:
        """Merge what upserts left into files that are read without a merge."""
        raise NotAvailable(f"it has no compaction of {table.name}")

    def cluster(self, table: BenchTable, by: Sequence[str], *, zorder: bool) -> None:
        """Rewrite the table sorted by these columns, or by all of them at once."""
        raise NotAvailable(f"it has no clustering of {table.name} by {', '.join(by)}{' in z-order' if zorder else ''}")

    def clean(self, table: BenchTable) -> None:
        """Delete the files that only older versions need. The newest version stays readable."""
        raise NotAvailable(f"it does not delete the files of old versions of {table.name}")

    def version(self, table: BenchTable) -> Any:
        """The newest version, in the form that `query`, `incremental` and `changes` take."""
        raise NotAvailable(f"it has no versions of {table.name}")

    @abstractmethod
    def query(self, table: BenchTable, query: Query, *, as_of: Any = None) -> Rows:
        """The answer over the newest rows, or over those of a version."""

    @abstractmethod
    def digest(self, table: BenchTable) -> Rows:
        """The digest of all rows."""

    def statement(self, tables: Mapping[str, BenchTable], statement: Statement) -> tuple[Rows, int]:
        """The answer, and the number of Exchanges that ran. `tables`: by source."""
        raise NotAvailable(f"it answers no {statement.sql[:40]} over {', '.join(tables)} by itself")

    def incremental(self, table: BenchTable, query: Query, since: Any) -> Rows:
        """The answer over the rows that commits after a version inserted or changed, in their newest state."""
        raise NotAvailable(f"it has no incremental read of {table.name} since {since} to ask for {', '.join(query.columns)}")

    def changes(self, table: BenchTable, query: Query, since: Any) -> Rows:
        """The answer over what each commit after a version inserted, updated and deleted, by type."""
        raise NotAvailable(f"it has no changes of {table.name} since {since} to ask for {', '.join(query.columns)}")

    def reopen(self, table: BenchTable) -> None:
        """Forget everything about the table, like a new process."""
        raise NotAvailable(f"it does not open {table.name} anew")

    def plan(self, table: BenchTable, query: Query) -> int:
        """Open the table and plan a query. Returns the number of files, groups or tasks of the plan."""
        raise NotAvailable(f"it does not plan {query.where} over {table.name} apart from running it")

    def requests(self, table: BenchTable) -> dict[str, int] | None:
        """Requests to the store so far, by kind. None where they are not counted."""
        return table.state.get("requests")

    def drop(self, table: BenchTable) -> None:
        """Forget the table. The caller removes its files."""
        table.state.clear()

    @abstractmethod
    def stop(self) -> None:
        """Stop."""
