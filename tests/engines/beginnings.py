"""How the tables of histories come to be, other than by `Lake.create_table` alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import write_deltalake
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.types import LongType

import objcat
from tests.engines.histories import BESIDE, NAME, SPAN, History

FILES = 3
"""Of a table that is imported or adopted."""


def create_without_mirrors(history: History, settings: Mapping[str, Any]) -> objcat.Table:
    """A step turns the mirrors on later."""
    properties = {name: value for name, value in settings["properties"].items() if name not in history.properties}
    return history.lake.create_table(NAME, history.cell.schema, **{**settings, "properties": properties})


def create_before_another(history: History, settings: Mapping[str, Any]) -> objcat.Table:
    """The table begins the log, and shares it."""
    table = history.lake.create_table(NAME, history.cell.schema, **settings)
    history.beside = _another(history, settings["shared_log"])
    return table


def create_after_another(history: History, settings: Mapping[str, Any]) -> objcat.Table:
    """Another table has begun the log, so mirrors of this one are in a folder of their own."""
    history.beside = _another(history, settings["shared_log"])
    return history.lake.create_table(NAME, history.cell.schema, **settings)


def _another(history: History, log: str) -> objcat.Table:
    return history.lake.create_table(BESIDE, pa.schema([pa.field("id", pa.int64(), nullable=False)]), key=["id"], shared_log=log)


def import_parquet(history: History, settings: Mapping[str, Any]) -> objcat.Table:
    """From Parquet files outside of the lake, each of which is a commit."""
    folder = history.outside / "first"
    folder.mkdir(parents=True)
    for number, rows in enumerate(_parts(history)):
        pq.write_table(rows, folder / f"{number}.parquet")
    history.lake.import_parquet(folder, NAME, commit_bytes=1, **settings)
    return history.lake.table(NAME)


def adopt_iceberg(history: History, settings: Mapping[str, Any]) -> objcat.Table:
    """From a table of pyiceberg, whose files lack a column that was added later."""
    history.outside.mkdir(parents=True)
    history.folder.mkdir(parents=True, exist_ok=True)
    uri = f"sqlite:///{history.outside}/catalog.db"
    with SqlCatalog("old", uri=uri, warehouse=f"file://{history.folder}/warehouse") as catalog:
        catalog.create_namespace("db")
        first, *others = _parts(history)
        foreign = catalog.create_table("db.old", first.schema)
        foreign.append(first)
        with foreign.update_schema() as update:
            update.add_column("later", LongType())
        for rows in others:
            foreign.append(rows.append_column("later", pa.array(range(rows.num_rows), pa.int64())))
        history.lake.adopt_iceberg(foreign, NAME, **settings)
    return history.lake.table(NAME)


def adopt_delta(history: History, settings: Mapping[str, Any]) -> objcat.Table:
    """From a partitioned table of deltalake, whose files lack the partition column."""
    place = str(history.folder / "old")
    for rows in _parts(history):
        write_deltalake(place, rows, mode="append", partition_by=["city"])
    history.lake.adopt_delta("old", NAME, storage_options={}, **settings)
    return history.lake.table(NAME)


def _parts(history: History) -> list[pa.Table]:
    """The first rows, in some files. No id comes twice."""
    ids = history.rng.sample(range(SPAN), FILES * 8)
    return [history.new_rows(history.cell.schema, ids[number::FILES]) for number in range(FILES)]
