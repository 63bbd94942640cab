"""Tables with deletes by position that Spark writes by Iceberg's and by Delta's own code, and what each engine reads of them."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

from devkit.engines import ENGINES
from tests.engines.process import EngineProcess, Engines, ReadRefused
from tests.engines.readers.serve import Request
from tests.engines.rows import compare

ROWS = [(1, "Zürich"), (2, None), (3, "c")]
KINDS = ("iceberg-2", "iceberg-3", "delta")
REFUSED = {
    ("chdb", "iceberg-3"): "Position deletes are supported only for parquet format",
    ("daft", "iceberg-3"): "Invalid Parquet file",
    ("daft", "delta"): "deletion vectors are not yet supported",
    ("trino", "iceberg-3"): "PUFFIN",
}
"""What an engine cannot, by a part of its error."""
WHOLLY = {("daft", "delta")}
"""What it refuses also where no row is deleted yet."""


class WrittenTable:
    """A table of three rows, of which one is deleted by position.

    states: the numbers of the state with all rows and of that without one, as `Request.slot` counts them.
    """

    def __init__(self, kind: str, prefix: Path) -> None:
        self.kind, self.prefix = kind, prefix
        self.format = kind.partition("-")[0]
        if self.format == "delta":
            self.states = (1, 2)
            self.metadata = ""
        else:
            version = int((prefix / "metadata" / "version-hint.text").read_text())
            self.metadata = str(prefix / "metadata" / f"v{version}.metadata.json")
            self.states = tuple(snapshot["snapshot-id"] - 1 for snapshot in json.loads(Path(self.metadata).read_text())["snapshots"])

    def request(self, way: str, state: int, sql: str | None = None, columns: tuple[str, ...] = ()) -> Request:
        return Request(self.format, str(self.prefix), way, self.states[state], self.metadata, sql, columns)


def written_tables(engines: Engines, folder: Path) -> dict[str, WrittenTable]:
    """They are told apart by kind."""
    values = ", ".join(f"({number}, {'null' if text is None else repr(text)})" for number, text in ROWS)
    statements = []
    for version in (2, 3):
        table = f"local.db.v{version}"
        modes = f"'format-version' = '{version}', 'write.delete.mode' = 'merge-on-read', 'write.delete.granularity' = 'file'"
        statements += [f"create table {table} (id bigint, v string) using iceberg tblproperties ({modes})"]
        statements += [f"insert into {table} select /*+ coalesce(1) */ * from values {values}", f"delete from {table} where id = 2"]
    place = folder / "delta"
    statements += [
        f"create table delta.`{place}` (id bigint, v string) using delta tblproperties ('delta.enableDeletionVectors' = 'true')",
        f"insert into delta.`{place}` select /*+ coalesce(1) */ * from values {values}",
        f"delete from delta.`{place}` where id = 2",
    ]
    spark = engines["spark"]
    spark.read(Request("", "", "write", 0, "", ";".join(statements)))
    return {kind: WrittenTable(kind, spark.folder / "iceberg" / "db" / f"v{kind[-1]}" if "-" in kind else place) for kind in KINDS}


def expected(*ids: int) -> pa.Table:
    return pa.table(
        {"id": pa.array(ids, pa.int64()), "v": pa.array([dict(ROWS)[number] for number in ids], pa.string())},
    )


def _read(engine: EngineProcess, request: Request) -> pa.Table:
    """Rows with text as text: one engine has no other kind of text than bytes."""
    rows = engine.read(request)
    return rows.set_column(1, "v", rows.column("v").cast(pa.string())) if rows.column_names == ["id", "v"] else rows


def check_reader(name: str, table: WrittenTable, engines: Engines) -> None:
    """Check both states of a table by an engine, or that it refuses what it is known to refuse."""
    engine, kind = engines[name], table.kind
    if table.format not in ENGINES[name].formats:
        return
    if (name, kind) in REFUSED:
        with pytest.raises(ReadRefused, match=REFUSED[name, kind]):
            engine.read(table.request("travel", 0 if (name, kind) in WHOLLY else 1))
    else:
        assert compare(expected(1, 3), _read(engine, table.request("travel", 1))) is None
        assert compare(expected(1, 3), _read(engine, table.request("newest", 1))) is None
    if (name, kind) not in WHOLLY:
        assert compare(expected(1, 2, 3), _read(engine, table.request("travel", 0))) is None
