"""What engines themselves cannot do with mirrors, each with the text of its error. An entry that nothing meets any more fails a run."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

Mirror = Literal["iceberg 2", "iceberg 3", "delta"]
MIRRORS: tuple[Mirror, ...] = ("iceberg 2", "iceberg 3", "delta")


@dataclass(frozen=True)
class Limit:
    """One thing that an engine cannot do, or does in its own way.

    Args:
        name: In records of runs.
        engine: Which one.
        mirrors: Of which formats.
        says: A pattern in its error, or the name of a way in which its rows differ.
        why: For people, a sentence.
        is_read: Whether the rows come, with values in types of the engine's own.
        cells: Where alone it is met; empty: anywhere.
    """

    name: str
    engine: str
    mirrors: Collection[Mirror]
    says: str
    why: str
    is_read: bool = False
    cells: Collection[str] = ()

    def fits(self, engine: str, mirror: Mirror, cell: str, told: str) -> bool:
        """Whether it is this that an engine said."""
        is_here = engine == self.engine and mirror in self.mirrors and (not self.cells or cell in self.cells)
        return is_here and re.search(self.says, told) is not None


LOWER_CASE = "names in lower case"
WIDENED_HIDDEN = "without columns that were widened"
MILLISECONDS = "times in milliseconds"
NULLS_AS_EMPTY = "nulls of nested types as empty values"
"""Ways in which rows of an engine differ. `own_ways.py` says what the rows are then."""
ICEBERG: tuple[Mirror, ...] = ("iceberg 2", "iceberg 3")
V3: tuple[Mirror, ...] = ("iceberg 3",)
DELTA: tuple[Mirror, ...] = ("delta",)
OUTSIDE = (
    "{} reads no file outside of the folder of a Delta table. Adopted files are there, and all files of a table that shares the log of "
    "another."
)
OUTSIDE_CELLS = ("adopted-iceberg", "adopted-delta", "shared-log-later")
LIMITS = (
    Limit(
        "chdb-v3",
        "chdb",
        V3,
        "Position deletes are supported only for parquet format",
        "ClickHouse reads no deletion vectors of Iceberg v3.",
    ),
    Limit(
        "chdb-text",
        "chdb",
        MIRRORS,
        "^(string as binary|timestamp_ntz as timestamp)$",
        "ClickHouse has one type for text and bytes, and gives text as bytes here. A time without a zone comes in the zone of the session.",
        is_read=True,
    ),
    Limit(
        "chdb-nested",
        "chdb",
        MIRRORS,
        f"^{NULLS_AS_EMPTY}$",
        "ClickHouse gives a null of a list, a map or a struct as an empty one.",
        is_read=True,
        cells=("types", "evolution", "restored", "begun-late", "catalog"),
    ),
    Limit(
        "chdb-paths",
        "chdb",
        DELTA,
        "should be inside the table directory",
        OUTSIDE.format("ClickHouse"),
        cells=OUTSIDE_CELLS,
    ),
    Limit(
        "polars-paths",
        "polars",
        DELTA,
        "No such file or directory",
        OUTSIDE.format("polars"),
        cells=OUTSIDE_CELLS,
    ),
    Limit("daft-v3", "daft", V3, "Invalid Parquet file", "daft takes a Puffin file of deletion vectors for Parquet."),
    Limit(
        "daft-delta",
        "daft",
        DELTA,
        "deletion vectors are not yet supported",
        "daft refuses the table feature `deletionVectors`, also where no row is masked.",
    ),
    Limit(
        "daft-schema",
        "daft",
        ICEBERG,
        "failed to fill whole buffer|past chunk end",
        "daft fails on files that were written before a column changed.",
        cells=("evolution", "restored", "begun-late", "catalog"),
    ),
    Limit(
        "trino-v3",
        "trino",
        V3,
        "PUFFIN",
        "Trino 476 reads no deletion vectors of Iceberg v3.",
    ),
    Limit(
        "trino-names",
        "trino",
        MIRRORS,
        f"^{LOWER_CASE}$",
        "Trino shows names of columns in lower case.",
        is_read=True,
        cells=("evolution", "restored", "begun-late", "catalog"),
    ),
    Limit(
        "trino-widened",
        "trino",
        DELTA,
        f"^{WIDENED_HIDDEN}$",
        "Trino 476 knows three changes of Delta's `typeWidening`: `tinyint` to `smallint` and to `int`, and `smallint` to `int`. It hides "
        "columns with another change, without a word; all other columns are right.",
        is_read=True,
        cells=("evolution", "held", "held-for-a-time", "begun-late"),
    ),
    Limit(
        "trino-times",
        "trino",
        DELTA,
        f"^{MILLISECONDS}$",
        "Trino has times with a zone of Delta tables as `timestamp(3) with time zone`, in any table, and rounds them to the millisecond.",
        is_read=True,
    ),
    Limit(
        "polars-mapping",
        "polars",
        DELTA,
        "columnMapping|typeWidening",
        "polars refuses the table features `columnMapping` and `typeWidening`. Tables need them after a column was renamed or widened, "
        "and where rows are masked in a partition whose name is encoded in paths.",
    ),
    *(
        Limit(
            f"{engine}-nested",
            engine,
            ICEBERG,
            f"^{NULLS_AS_EMPTY}$",
            "pyiceberg gives an empty list for a list of structs that is null; polars reads position deletes by pyiceberg.",
            is_read=True,
            cells=("types",),
        )
        for engine in ("pyiceberg", "polars")
    ),
    Limit(
        "deltalake-widening",
        "deltalake",
        DELTA,
        "TypeWidening",
        "deltalake refuses the table feature `typeWidening`: tables whose columns were widened.",
    ),
)
SETTINGS: Mapping[tuple[str, Mirror], tuple[str, ...]] = {("duckdb", "iceberg 3"): ("enable_external_file_cache = false",)}
"""What an engine needs to be told, or rows are wrong: `WITHOUT` says how."""
WITHOUT: Mapping[tuple[str, Mirror], str] = {
    ("duckdb", "iceberg 3"): (
        "DuckDB 1.5.5 needs `SET enable_external_file_cache = false` here. It mixes parts of Puffin files that it keeps: a connection that "
        "reads a newer snapshot and then an older one may mask wrong rows. v2 and Delta are not affected."
    )
}


def limits_of(engine: str, mirror: Mirror, cell: str, told: Sequence[str]) -> list[Limit] | None:
    """The limits that explain all that an engine said. None if something is new. told: errors, and ways in which rows differ."""
    found = [next((limit for limit in LIMITS if limit.fits(engine, mirror, cell, one)), None) for one in told]
    known = [limit for limit in found if limit is not None]
    return [limit for limit in LIMITS if limit in known] if len(known) == len(told) else None
