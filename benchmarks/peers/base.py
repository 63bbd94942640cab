"""What a side does for the benchmark, and the process around it (see `benchmarks.worker`). Nothing here needs more than Python itself."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.works import Layout, NotAvailable, Query

Rows = Sequence[Sequence[Any]]


@dataclass(frozen=True, slots=True)
class Settings:
    """directory: for everything that the side writes. memory: of Spark's driver, e.g. `3g`. jars: paths."""

    directory: Path
    memory: str
    cores: int
    jars: tuple[str, ...] = ()


@dataclass(slots=True)
class BenchTable:
    """A table as the benchmark knows it. state: what the side keeps of it."""

    name: str
    layout: Layout
    state: dict[str, Any] = field(default_factory=dict)


class Side(ABC):
    """One side. Only `load`, `upsert`, `compact`, `query`, `join` and `last_commit` are timed."""

    @abstractmethod
    def start(self, settings: Settings) -> dict[str, str]:
        """Begin, and tell what it is: versions and the settings that matter."""

    @abstractmethod
    def create(self, table: BenchTable) -> Path:
        """Make an empty table, as far as the side knows such a thing; where its files will lie."""

    @abstractmethod
    def read(self, path: Path) -> Any:
        """A batch, as this side takes it."""

    @abstractmethod
    def load(self, table: BenchTable, path: Path) -> str | None:
        """Fill the empty table from a Parquet file. What was called, when that is worth a word."""

    @abstractmethod
    def upsert(self, table: BenchTable, batch: Any) -> None:
        """One commit that inserts or replaces by key. Raises NotAvailable."""

    def compact(self, table: BenchTable) -> None:
        """Merge what upserts left into files that are read without a merge."""
        raise NotAvailable(f"it has no compaction of {table.name}")

    @abstractmethod
    def query(self, table: BenchTable, query: Query) -> Rows: ...

    @abstractmethod
    def digest(self, table: BenchTable) -> Rows: ...

    def join(self, orders: BenchTable, lineitem: BenchTable) -> tuple[Rows, int]:
        """The answer of the join, and how many Exchanges ran."""
        raise NotAvailable(f"it does not join {orders.name} and {lineitem.name} by itself")

    def last_commit(self, table: BenchTable, query: Query) -> Rows:
        """The answer to a query over the rows, in their new state, that the last commit changed."""
        raise NotAvailable(f"it has no incremental read of {table.name} to ask for {', '.join(query.columns)}")

    def requests(self, table: BenchTable) -> dict[str, int] | None:
        """Requests to the store so far, by kind; None where nobody counts them."""
        return table.state.get("requests")

    def drop(self, table: BenchTable) -> None:
        """Forget the table; its files are removed by the caller."""
        table.state.clear()

    @abstractmethod
    def stop(self) -> None: ...
