"""Scans of a mirrored table by Spark and Iceberg, beside the same table as Iceberg itself wrote it: the same rows in the same order in as
many files, with the columns of TPC-H's lineitem, partitioned by year.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import objcat
from benchmarks.data import Data
from benchmarks.paired import compared
from benchmarks.works import CODEC, CODEC_LEVEL, KEYS
from devkit.engines import ENGINES
from devkit.environments import environment_dir
from devkit.paths import ROOT
from objcat.metadata.properties import AUTO_CLEAN, MIRRORS

BUCKETS_OF_A_YEAR = 4
MIRROR, OWN = "mirror", "own table"
WARM_UPS = 3
"""Rounds that are not counted, while the JVM compiles."""
QUERIES: Mapping[str, tuple[int, str]] = {
    "count of all rows": (10, "select count(*) from {t}"),
    "sum of three columns": (1, "select sum(l_extendedprice * (1 - l_discount)), max(l_shipdate) from {t}"),
    "every column": (1, "select {every} from {t}"),
    "groups by two columns": (
        1,
        "select l_returnflag, l_linestatus, sum(l_quantity), avg(l_extendedprice), count(*) from {t} group by 1, 2 order by 1, 2",
    ),
    "filter on the key, 1 %": (4, "select sum(l_extendedprice), count(*) from {t} where l_orderkey between {low} and {high}"),
    "one key": (8, "select sum(l_extendedprice), count(*) from {t} where l_orderkey = {key}"),
    "filter on the partition": (
        2,
        "select sum(l_extendedprice), count(*) from {t} where l_shipdate >= date '1995-01-01' and l_shipdate < date '1996-01-01'",
    ),
}
"""By name: how often a sample runs the query, so that short ones are measured too, and the query."""


def measure_spark_scans(place: Path, data: Data, rounds: int, say: Callable[[str], None]) -> dict[str, dict[str, float]]:
    """By query: medians of both sides and ratios with their intervals, of seconds and of CPU seconds of the JVM. Then both tables' files.

    Raises InstallError and ToolchainError, if Spark cannot be installed, and AssertionError when two sides answer differently.
    """
    say("making the mirrored table")
    table = lineitem_table(objcat.connect(place / "lake"), data)
    prefix = table.url.removeprefix("file://")
    files = sorted(str(Path(prefix, base.path)) for base in _base_files(table))
    newest = table.scan(columns=["l_orderkey"]).to_arrow()["l_orderkey"]
    greatest = int(pa.compute.max(newest).as_py())
    texts: dict[str, Any] = {"low": greatest // 2, "high": greatest // 2 + greatest // 100, "key": int(newest[len(newest) // 3].as_py())}
    texts["every"] = ", ".join(f"max({name})" for name in table.schema.names)
    request = {
        "mirror": prefix,
        "files": files,
        "columns": table.schema.names,
        "partitions": "year(l_shipdate)",
        "codec": CODEC,
        "level": CODEC_LEVEL,
        "folder": str(place / "spark"),
        "queries": {name: (count, sql.format(t="{t}", **texts)) for name, (count, sql) in QUERIES.items()},
        "rounds": rounds,
        "warm_ups": WARM_UPS,
    }
    say("writing the same table by Iceberg, and scanning both")
    answer = _scan(place, request)
    if len(answer["own_files"]) != len(files):
        raise AssertionError(f"Iceberg wrote {len(answer['own_files'])} files, and the mirror names {len(files)}")
    found = {name: _compared(name, pairs) for name, pairs in answer["pairs"].items()}
    return {**found, f"files, {MIRROR}": shape(files), f"files, {OWN}": shape(answer["own_files"])}


def lineitem_table(lake: objcat.Lake, data: Data) -> objcat.Table:
    """The table, compacted, with its mirror."""
    rows = pq.read_table(data.source("lineitem"))
    fields = [field.with_nullable(field.name not in KEYS["lineitem"]) for field in rows.schema]
    table = lake.create_table(
        "db.lineitem",
        pa.schema(fields),
        key=list(KEYS["lineitem"]),
        index=objcat.BucketIndex(BUCKETS_OF_A_YEAR, ("l_orderkey",)),
        partition_by=["year(l_shipdate)"],
        key_scope="partition",
        properties={MIRRORS: "iceberg", AUTO_CLEAN: "false"},
    )
    table.insert(rows.cast(pa.schema(fields)))
    one = rows.slice(0, rows.num_rows // 100)
    table.upsert(one.cast(pa.schema(fields)))
    table.maintenance.compact()
    for report in table.maintenance.mirror():
        if report.lag or report.held:
            raise AssertionError(f"The mirror did not follow: {report}")
    return table


def _base_files(table: objcat.Table) -> list[Any]:
    groups = table.snapshot.file_groups(table._context.manifests)
    if any(group.logs for group in groups):
        raise AssertionError("the table is not compacted")
    return [group.base for group in groups]


def _scan(place: Path, request: Mapping[str, Any]) -> dict[str, Any]:
    engine = ENGINES["spark"]
    engine.install()
    Path(request["folder"]).mkdir()
    asked, log = place / "request.json", place / "spark.log"
    asked.write_text(json.dumps(request))
    command = [str(environment_dir(engine.lock) / "bin" / "python"), "-W", "ignore", "-m", "benchmarks.spark_scanner", str(asked)]
    with log.open("w") as errors:
        done = subprocess.run(command, cwd=ROOT, env=engine.environment(), stdout=subprocess.PIPE, stderr=errors, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"Spark did not scan the tables: {log.read_text()[-3000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _compared(name: str, pairs: list[dict[str, dict[str, Any]]]) -> dict[str, float]:
    for pair in pairs:
        if pair[MIRROR]["answer"] != pair[OWN]["answer"]:
            raise AssertionError(f"{name}: the mirror answers {pair[MIRROR]['answer']}, the other table {pair[OWN]['answer']}")
    figures = [
        {side: {what: value for what, value in sample.items() if what != "answer"} for side, sample in pair.items()} for pair in pairs
    ]
    return compared(figures, MIRROR, OWN)


def shape(files: list[str]) -> dict[str, float]:
    """How many files, rows, row groups and bytes."""
    found = [pq.read_metadata(file) for file in files]
    return {
        "files": len(files),
        "rows": sum(one.num_rows for one in found),
        "row groups": sum(one.num_row_groups for one in found),
        "bytes": sum(Path(file).stat().st_size for file in files),
    }
