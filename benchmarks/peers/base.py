"""What a side does for the benchmark, and the process around it (see `benchmarks.worker`). Nothing here needs more than Python itself."""

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
    """A bucket on a server of S3, which holds the tables. The keys are those of a server on loopback, and no secret."""

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
    """A table as the benchmark knows it. state: what the side keeps of it. versions: after each commit, where the chain asks for them."""

    name: str
    layout: Layout
    state: dict[str, Any] = field(default_factory=dict)
    versions: list[Any] = field(default_factory=list)


class Side(ABC):
    """One side. Only what writes, serves or answers is timed. `NotAvailable` says that a side has no such thing."""

    settings: Settings

    @abstractmethod
    def start(self, settings: Settings) -> dict[str, str]:
        """Begin, and tell what it is: versions and the settings that matter."""

    @abstractmethod
    def create(self, table: BenchTable) -> str:
        """Make an empty table, as far as the side knows such a thing; where its files will lie: a directory, or a URL below the store."""

    @abstractmethod
    def read(self, path: Path) -> Any:
        """A batch, as this side takes it."""

    @abstractmethod
    def load(self, table: BenchTable, path: Path) -> str | None:
        """Fill the empty table from a Parquet file. What was called, when that is worth a word."""

    @abstractmethod
    def upsert(self, table: BenchTable, batch: Any) -> None:
        """One commit that inserts or replaces by key."""

    def append(self, table: BenchTable, batch: Any) -> None:
        """One commit of new rows of a table without a key."""
        raise NotAvailable(f"it does not append to {table.name} of {type(batch).__name__}")

    def delete(self, table: BenchTable, batch: Any) -> None:
        """One commit that deletes by key. batch: keys, some of which are not there."""
        raise NotAvailable(f"it has no delete by key in {table.name} of {type(batch).__name__}")

    def compact(self, table: BenchTable) -> None:
        """Merge what upserts left into files that are read without a merge."""
        raise NotAvailable(f"it has no compaction of {table.name}")

    def cluster(self, table: BenchTable, by: Sequence[str], *, zorder: bool) -> None:
        """Rewrite the table so that rows lie sorted by these columns, or by all of them at once."""
        raise NotAvailable(f"it has no clustering of {table.name} by {', '.join(by)}{' in z-order' if zorder else ''}")

    def clean(self, table: BenchTable) -> None:
        """Delete the files that only older versions need; the newest stays readable."""
        raise NotAvailable(f"it does not delete the files of old versions of {table.name}")

    def version(self, table: BenchTable) -> Any:
        """The newest version, as `query`, `incremental` and `changes` take it."""
        raise NotAvailable(f"it has no versions of {table.name}")

    @abstractmethod
    def query(self, table: BenchTable, query: Query, *, as_of: Any = None) -> Rows:
        """The answer over the newest rows, or over those of a version."""

    @abstractmethod
    def digest(self, table: BenchTable) -> Rows: ...

    def statement(self, tables: Mapping[str, BenchTable], statement: Statement) -> tuple[Rows, int]:
        """The answer, and how many Exchanges ran. tables: by source."""
        raise NotAvailable(f"it answers no {statement.sql[:40]} over {', '.join(tables)} by itself")

    def incremental(self, table: BenchTable, query: Query, since: Any) -> Rows:
        """The answer over the rows, in their newest state, that commits after a version inserted or changed."""
        raise NotAvailable(f"it has no incremental read of {table.name} since {since} to ask for {', '.join(query.columns)}")

    def changes(self, table: BenchTable, query: Query, since: Any) -> Rows:
        """By type, the answer over what each commit after a version inserted, updated and deleted."""
        raise NotAvailable(f"it has no changes of {table.name} since {since} to ask for {', '.join(query.columns)}")

    def reopen(self, table: BenchTable) -> None:
        """Forget what is known of the table, as a process that has just begun knows nothing."""
        raise NotAvailable(f"it does not open {table.name} anew")

    def plan(self, table: BenchTable, query: Query) -> int:
        """Open the table and plan a query; how many files, groups or tasks the plan has."""
        raise NotAvailable(f"it does not plan {query.where} over {table.name} apart from running it")

    def requests(self, table: BenchTable) -> dict[str, int] | None:
        """Requests to the store so far, by kind; None where nobody counts them."""
        return table.state.get("requests")

    def drop(self, table: BenchTable) -> None:
        """Forget the table; its files are removed by the caller."""
        table.state.clear()

    @abstractmethod
    def stop(self) -> None: ...
