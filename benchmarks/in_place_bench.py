"""`./dev bench in-place`: queries of logs as JSON lines, raw, over a whole copy as Parquet, and over a table in place with 3 of 40 columns
precomputed.

The sides run in turns, and their answers are compared: a wrong answer has no time, and the command fails.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import shlex
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

import objcat
from benchmarks import environment

PRECOMPUTED = ("ts", "user_id", "status")
ROWS_OF_FILE = 64 * 1024
"""About 64 MB of text."""
USERS = 1_000_000
GOALS = {"storage": 0.08, "precomputed": 1.2, "needle": 2.0, "needle beside raw": 20.0}
"""Bytes, times of queries of precomputed columns and times of a needle, beside the copy; how much faster than raw a needle is."""
_MAKE = """
copy (
  with numbered as (select range as n, (hash((range + {first})::bigint) >> 1)::bigint as h from range({rows}))
  select
    strftime(timestamp '2026-11-01' + to_microseconds(({first} + n) * 36 * 1000), '%Y-%m-%dT%H:%M:%S.%f') as ts,
    (h % {users})::bigint as user_id,
    [200, 200, 200, 200, 201, 204, 301, 404, 404, 500][1 + (h >> 7) % 10] as status,
    md5(h::varchar) as request_id,
    ['GET', 'GET', 'POST', 'PUT', 'DELETE'][1 + (h >> 3) % 5] as method,
    '/api/v1/' || ['users', 'orders', 'carts', 'items'][1 + (h >> 5) % 4] || '/' || ((h >> 11) % 100000) as path,
    'web-' || ((h >> 13) % 200) as host,
    ((h >> 17) % 1000000) / 1000.0 as latency_ms,
    ((h >> 19) % 500000)::bigint as sent_bytes,
    'request ' || md5((h + 1)::varchar) || ' of ' || md5((h + 2)::varchar) || ' was answered' as message,
    {others}
  from numbered
) to '{target}' (format json)
"""


def columns_of_schema() -> dict[str, str]:
    """The 40 columns with their types in DuckDB."""
    named = {"ts": "timestamp", "user_id": "bigint", "status": "bigint", "request_id": "varchar", "method": "varchar", "path": "varchar"}
    named |= {"host": "varchar", "latency_ms": "double", "sent_bytes": "bigint", "message": "varchar"}
    return named | {f"field_{number}": ("bigint", "varchar", "double")[number % 3] for number in range(30)}


def make_logs(folder: Path, *, bytes_wanted: int) -> list[Path]:
    """Files of JSON lines of about so many bytes together, in `day=` folders. The same rows in every run."""
    others = []
    for number in range(30):
        shifted = f"((hash(h + {number + 10}) >> 1)::bigint)"
        others.append(
            (
                f"({shifted} % {10 ** (2 + number % 7)})::bigint as field_{number}",
                f"'v' || ({shifted} % {10 ** (2 + number % 5)}) as field_{number}",
                f"({shifted} % 1000000) / 997.0 as field_{number}",
            )[number % 3]
        )
    made: list[Path] = []
    size = 0
    with duckdb.connect() as connection:
        while size < bytes_wanted:
            first = len(made) * ROWS_OF_FILE
            place = folder / f"day={1 + len(made) // 8:02d}"
            place.mkdir(parents=True, exist_ok=True)
            target = place / f"{len(made):05d}.json"
            connection.execute(_MAKE.format(first=first, rows=ROWS_OF_FILE, users=USERS, others=",\n    ".join(others), target=target))
            made.append(target)
            size += target.stat().st_size
    return made


def copy_as_parquet(files: Sequence[Path], folder: Path) -> None:
    """A whole copy: one Parquet file for each file, by DuckDB, with zstd."""
    folder.mkdir(parents=True)
    with duckdb.connect() as connection:
        for file in files:
            connection.execute(
                f"copy (select * from {raw([file])}) to '{folder / file.with_suffix('.parquet').name}' (format parquet, compression zstd)"
            )


def raw(files: Sequence[Path] | str) -> str:
    """The source of a query in DuckDB that reads the files themselves."""
    listed = f"'{files}'" if isinstance(files, str) else "[" + ", ".join(f"'{file}'" for file in files) + "]"
    return f"read_json({listed}, format = 'newline_delimited', columns = {columns_of_schema()}, hive_partitioning = false)"


@dataclass(frozen=True, slots=True)
class LogQuery:
    """A query. `text`: with `{table}`. `kind`: which goal it has."""

    name: str
    kind: str
    text: str


def log_queries(files: int) -> list[LogQuery]:
    """The queries of a run over so many files."""
    second = files * ROWS_OF_FILE // 2 * 36 // 1000
    begin, end = (_moment(one * 1000) for one in (second, second + 60))
    row = files * ROWS_OF_FILE // 3
    moment = _moment(row * 36)
    with duckdb.connect() as connection:
        found = connection.execute(f"select (hash({row}::bigint) >> 1)::bigint % {USERS}").fetchone()
    assert found is not None
    every = ", ".join(columns_of_schema())
    return [
        LogQuery("rows by status", "precomputed", "select status, count(*), count(distinct user_id) from {table} group by 1 order by 1"),
        LogQuery(
            "errors of a minute",
            "precomputed",
            f"select count(*), max(user_id) from {{table}} where status = 500 and ts >= {begin} and ts < {end}",
        ),
        LogQuery(
            "users with most errors",
            "precomputed",
            "select user_id, count(*) from {table} where status = 500 group by 1 order by 2 desc, 1 limit 10",
        ),
        LogQuery("one user, all columns", "needle", f"select {every} from {{table}} where user_id = {found[0]} order by ts"),
        LogQuery("one moment, all columns", "needle", f"select {every} from {{table}} where ts = {moment} order by user_id"),
        LogQuery("another column", "whole", "select method, count(*), max(sent_bytes) from {table} group by 1 order by 1"),
    ]


def _moment(after_ms: int) -> str:
    at = dt.datetime(2026, 11, 1, tzinfo=dt.UTC).replace(tzinfo=None) + dt.timedelta(milliseconds=after_ms)
    return f"timestamp '{at.isoformat(sep=' ', timespec='milliseconds')}'"


Ask = Callable[[str], list[tuple[Any, ...]]]
"""Runs a query whose table is in its text, and gives its rows."""


def duckdb_sides(files: Sequence[Path], copy: Path, lake: objcat.Lake) -> dict[str, Ask]:
    """The sides in one process."""
    connection = duckdb.connect()

    def ask(source: str) -> Ask:
        return lambda text: connection.execute(text.replace("{table}", source)).fetchall()

    def own(text: str) -> list[tuple[Any, ...]]:
        found = lake.sql(text.replace("{table}", "logs"))
        return [tuple(row.values()) for row in found.to_pylist()]

    return {"raw": ask(raw(files)), "copy": ask(f"read_parquet('{copy}/*.parquet')"), "objcat": own}


def spark_sides(files: Sequence[Path], copy: Path, lake: objcat.Lake, place: Path) -> dict[str, Ask]:
    """The sides in a session of Spark."""
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder: Any = SparkSession.builder
    for name, value in {
        "spark.master": "local[2]",
        "spark.driver.memory": "3g",
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.local.dir": str(place / "spark"),
        "spark.sql.shuffle.partitions": "4",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.timestampType": "TIMESTAMP_NTZ",
    }.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    types = ", ".join(f"{name} {'timestamp_ntz' if kind == 'timestamp' else kind}" for name, kind in columns_of_schema().items())
    types = types.replace("varchar", "string")
    spark.read.schema(types).json([str(file) for file in files]).createOrReplaceTempView("raw_logs")
    spark.read.parquet(str(copy)).createOrReplaceTempView("copied_logs")

    def ask(view: str) -> Ask:
        return lambda text: [tuple(row) for row in spark.sql(text.replace("{table}", view)).collect()]

    def own(text: str) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in lake.sql(text.replace("{table}", "logs"), spark).collect()]

    return {"raw": ask("raw_logs"), "copy": ask("copied_logs"), "objcat": own}


def run_queries(queries: Sequence[LogQuery], sides: Mapping[str, Ask], rounds: int, say: Callable[[str], None]) -> list[dict[str, Any]]:
    """The seconds of each query by side, in turns. The first round does not count where there are several. Raw is asked once."""
    results = []
    for query in queries:
        took: dict[str, list[float]] = {name: [] for name in sides}
        answers: dict[str, list[tuple[Any, ...]]] = {}
        for number in range(rounds + 1):
            for name, ask in sides.items():
                if name == "raw" and number:
                    continue
                began = time.perf_counter()
                answers[name] = ask(query.text)
                if number or name == "raw" or not rounds:
                    took[name].append(time.perf_counter() - began)
        wrong = [name for name in answers if _comparable(answers[name]) != _comparable(answers["copy"])]
        middle = {name: statistics.median(values) for name, values in took.items()}
        results.append(
            {"query": query.name, "kind": query.kind, "seconds": took, "rows": len(answers["copy"]), "wrong": wrong, "median": middle}
        )
        shown = ", ".join(f"{name} {value:.3f} s" for name, value in middle.items())
        say(f"{query.name}: {f'WRONG: {wrong}' if wrong else shown}, {len(answers['copy'])} rows")
    return results


def _comparable(rows: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    return [tuple(f"{value:.9g}" if isinstance(value, float) else str(value) for value in row) for row in rows]


def size_of(folder: Path, pattern: str) -> int:
    """Bytes of the files of a pattern."""
    return sum(file.stat().st_size for file in folder.rglob(pattern) if file.is_file())


def main(arguments: list[str]) -> int:
    """Run the suite and return its exit status."""
    parser = argparse.ArgumentParser(prog="./dev bench in-place", description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=1.0, help="of JSON lines")
    parser.add_argument("--rounds", type=int, default=3, help="that count, of every side but raw")
    parser.add_argument("--engines", default="duckdb,spark")
    parser.add_argument("--directory", type=Path, help="where files are written")
    parser.add_argument("--json", type=Path, help="where results are written")
    given = parser.parse_args(arguments)
    say: Callable[[str], None] = lambda text: print(text, flush=True)  # noqa: E731
    began = environment.now()
    failed = False
    with tempfile.TemporaryDirectory(prefix="objcat-bench-", dir=given.directory) as name:
        place = Path(name)
        files = make_logs(place / "logs", bytes_wanted=int(given.gigabytes * 1e9))
        text = size_of(place / "logs", "*.json")
        say(f"{len(files)} files, {text / 1e9:.2f} GB, {len(files) * ROWS_OF_FILE:,} rows")
        start = time.perf_counter()
        copy_as_parquet(files, place / "copy")
        copied_s = time.perf_counter() - start
        lake = objcat.connect(str(place / "lake"))
        types = {"timestamp": pa.timestamp("us"), "bigint": pa.int64(), "varchar": pa.string(), "double": pa.float64()}
        schema = pa.schema([(column, types[kind]) for column, kind in columns_of_schema().items()])
        source = objcat.Files(f"{place}/logs/**/*.json", format="json", precompute=PRECOMPUTED)
        table = lake.create_table("logs", schema, source=source)
        start = time.perf_counter()
        table.refresh_files()
        refreshed_s = time.perf_counter() - start
        stored, copied = size_of(place / "lake", "*"), size_of(place / "copy", "*")
        storage = {"json": text, "copy": copied, "objcat": stored, "share of the copy": stored / copied}
        say(
            f"storage: copy {copied / 1e6:.1f} MB, objcat {stored / 1e6:.1f} MB: {100 * stored / copied:.1f} %, goal {GOALS['storage']:.0%}"
        )
        say(f"copy made in {copied_s:.1f} s; refresh in {refreshed_s:.1f} s, {text / 1e6 / refreshed_s:.0f} MB/s")
        found: dict[str, Any] = {"storage": storage, "copy, s": copied_s, "refresh, s": refreshed_s, "goals": GOALS}
        for engine in given.engines.split(","):
            sides = duckdb_sides(files, place / "copy", lake) if engine == "duckdb" else spark_sides(files, place / "copy", lake, place)
            found[engine] = run_queries(log_queries(len(files)), sides, given.rounds, lambda line, engine=engine: say(f"{engine}: {line}"))  # type: ignore[misc]
            failed = failed or any(one["wrong"] for one in found[engine])
            if given.json is not None:
                command = shlex.join(["./dev", "bench", "in-place", *arguments])
                told = {**environment.machine(command, began=began), "store": "local disk"}
                given.json.write_text(json.dumps({"environment": told, **found}, indent=1))
    return 1 if failed else 0
