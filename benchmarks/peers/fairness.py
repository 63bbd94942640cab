"""Why each side is configured as it is, and what was not done; `./dev bench notes` writes the page from it and from the configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.install import locked_versions
from benchmarks.peers import SIDES
from benchmarks.peers.configuration import (
    DELTA_SESSION,
    HUDI_SESSION,
    PYICEBERG_TABLE,
    Settings,
    delta_table,
    deltalake_table,
    hudi_table,
    iceberg_session,
    iceberg_table,
    s3a,
    spark_session,
)
from benchmarks.works import BUCKETS, Layout

PAGE = Path("benchmarks", "results", "configuration.md")
BEGIN, END = "<!-- written by ./dev bench notes: begin -->", "<!-- written by ./dev bench notes: end -->"
_SHOWN = ("pyspark", "deltalake", "pyiceberg", "duckdb")
"""Packages whose versions say what a side is."""
_DEFAULT = Layout("orders", "orders")
_LAYOUTS: Mapping[str, Layout] = {
    "copy-on-write": replace(_DEFAULT, kind="copy_on_write"),
    "event-time order": replace(_DEFAULT, ordering="o_orderdate"),
    "changes are asked for": replace(_DEFAULT, changes=True),
    "bloom index": replace(_DEFAULT, index="bloom"),
    "record index": replace(_DEFAULT, index="record"),
    "no key": replace(_DEFAULT, keyed=False),
}


@dataclass(frozen=True, slots=True)
class Notes:
    """Of a side. session: its own settings of a Spark session. table: those of a table, by layout. why: of its configuration. undone: what
    would be possible, and is not measured."""

    session: Settings
    table: Callable[[Layout], Settings]
    why: tuple[str, ...]
    undone: tuple[str, ...]


def _nothing(_layout: Layout) -> Settings:
    return {}


NOTES: Mapping[str, Notes] = {
    "hudi": Notes(
        HUDI_SESSION,
        hudi_table,
        (
            "The session is the one that its quick start gives. The metadata table is on, as it is by default.",
            f"The bucket index with {BUCKETS} buckets of the key is what it recommends for upserts of a table whose size is known.",
            "objcat has the same; the bloom and the record index are measured beside those of objcat.",
            "The load is `bulk_insert`; with the bloom index sorted over the whole table, so that key ranges leave files out.",
            "Upserts are `upsert`, deletes `delete`.",
            "Compaction is no part of a write (`inline` and `async` are off): it is measured by itself, as that of the others is.",
            "Clustering is `run_clustering`, of tables without a key and with the record index.",
        ),
        (
            "With the bucket index its clustering ends and the next upsert fails, for names of file groups without a bucket: not measured.",
            "Spark 3.5 and not 4: the newest for which a bundle was found. Its figures are also those of an older Spark.",
            "The simple index, the consistent-hashing bucket index, partial updates and the Flink writer are not measured.",
            "Its change feed is asked for and not measured: it is JSON, in which decimals have no value.",
            "Reads are snapshot queries; its read-optimized query leaves logs out, and answers something else.",
        ),
    ),
    "iceberg": Notes(
        iceberg_session("WAREHOUSE"),
        iceberg_table,
        (
            "Format 3, so that merge-on-read writes deletion vectors instead of files of positions.",
            f"Partitioned by `bucket({BUCKETS}, key)`, written distributed by partition and ordered by key: the layout of objcat.",
            "Joins by bucket are on. Upserts and deletes are `MERGE INTO` by key.",
            "Clustering is `rewrite_data_files` with `sort`, within partitions.",
            "Where the work names the record index its table has none: rows are sorted across all files, as those of objcat are then.",
            "Tables whose changes are asked for are copy-on-write: a changelog is refused where there are deletion vectors.",
        ),
        (
            "A Hadoop catalog, whose commit is a rename on local disk: no service takes part in a commit.",
            "On S3 that rename is no commit at all, as two writers can lose one another's work. It is there to count what the table sends.",
            "A REST catalog would add requests to itself, and spare some to S3.",
            "S3 is reached by the Hadoop connector, as the others do it, and not by its own `S3FileIO`.",
            "Equality deletes, which need no look-up, are written by Flink only, and are not measured.",
        ),
    ),
    "delta": Notes(
        DELTA_SESSION,
        delta_table,
        (
            "Deletion vectors are on for merge-on-read, and off for copy-on-write.",
            f"It has no buckets: the load writes {BUCKETS} files, each of a range of the key and sorted by it, for its statistics.",
            "Upserts and deletes are `MERGE INTO` by key.",
            "Compaction is `REORG TABLE ... APPLY (PURGE)`, which merges deletion vectors away.",
            "Clustering is `ZORDER BY`, across all files, also with a key; that of objcat stays within its buckets under a bucket index.",
            "The check of the retention is off, so that a `VACUUM` may keep the newest version only, as the cleaning of the others does.",
        ),
        (
            "Liquid clustering, auto compaction and optimized writes are not measured. Sorting by one column is `ZORDER BY` of it.",
            "On S3 its default log store is for one driver; the one that many may use needs DynamoDB, and is not measured.",
        ),
    ),
    "deltalake": Notes(
        {},
        deltalake_table,
        (
            "zstd at the level of the others; else as it comes. Upserts and deletes are `merge` by key, on a handle that stays open.",
            "Conditional PUTs take the place of a lock on S3.",
            "Clustering is `z_order`, also of one column, across all files.",
        ),
        (
            "It has copy-on-write only: where the work says merge-on-read it writes more, and its readers have less to do later.",
            "Queries run in its own DataFusion, aggregates over their result in DuckDB, as for every side without Spark.",
            "It does not say what a filter leaves of its files, so its plan of a lookup is a list of all of them.",
        ),
    ),
    "pyiceberg": Notes(
        {},
        lambda _layout: PYICEBERG_TABLE,
        (
            "A catalog in SQLite on local disk, whose requests do not count.",
            "Upserts are `upsert` by key, deletes a filter `In` over the keys.",
        ),
        (
            "It has copy-on-write only, and no compaction, clustering or changes.",
            "Its cleaning leaves files where they are. Those works say so.",
        ),
    ),
    "plain": Notes(
        {},
        _nothing,
        (f"Spark's own Parquet tables, bucketed into {BUCKETS} by the key and sorted by it: what a scan costs without a table format.",),
        ("It knows no update: its state after one is written anew, and that is not measured. Nothing in it is atomic.",),
    ),
    "duckdb": Notes(
        {},
        _nothing,
        ("DuckDB on one plain Parquet file, sorted by key: the floor of reads without Spark. It reads what a query needs by itself.",),
        ("As plain Spark: no update is measured.",),
    ),
    "duckdb-buckets": Notes(
        {},
        _nothing,
        (f"The same, sorted by bucket and key: the floor of loads without Spark. The bucket is DuckDB's own hash modulo {BUCKETS}.",),
        ("One file and not one for each bucket, without digests and checksums of pages. Nothing is forced to the disk.",),
    ),
}


def render() -> str:
    """The part of the page that is made from code."""
    session = spark_session(Path("DIRECTORY"), cores=2, memory="3g")
    on_s3 = s3a(endpoint="ENDPOINT", region="REGION", access_key="KEY", secret_key="SECRET")
    parts = ["## Every side on Spark", _table(session), "In the suite `requests` also:", _table(on_s3)]
    return "\n\n".join([*parts, *(_of(side, notes) for side, notes in NOTES.items())])


def written(page: str) -> str:
    """A page with that part in its place."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{render()}\n\n{END}{after}"


def _of(side: str, notes: Notes) -> str:
    peer = SIDES[side]
    jars = [f"`{jar.coordinate}`" for jar in peer.jars]
    versions = [f"{name} {version}" for name, version in locked_versions(peer).items() if name in _SHOWN]
    parts = [f"## {side}", f"{', '.join([*versions, *jars])}." if versions or jars else "", "\n".join(f"- {text}" for text in notes.why)]
    if notes.session:
        parts += ["Of the session:", _table(notes.session)]
    table = notes.table(_DEFAULT)
    if table:
        parts += ["Of a table, and of every write:", _table(table)]
    for name, layout in _LAYOUTS.items():
        changed = {key: value for key, value in notes.table(layout).items() if table.get(key) != value}
        gone = [key for key in table if key not in notes.table(layout)]
        if changed or gone:
            parts += [f"Where the work says *{name}*:", _table(changed | dict.fromkeys(gone, "(not set)"))]
    return "\n\n".join(part for part in [*parts, "Not done:", "\n".join(f"- {text}" for text in notes.undone)] if part)


def _table(settings: Settings) -> str:
    rows = "\n".join(f"| `{name}` | {f'`{value}`' if value else '(empty)'} |" for name, value in settings.items())
    return f"| setting | value |\n|---|---|\n{rows}"
