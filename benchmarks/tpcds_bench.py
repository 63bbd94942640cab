"""`./dev bench tpcds`: the queries of TPC-DS by `spark.sql`, over tables of objcat and over plain Parquet files with the same rows.

Tables are created, filled and changed by `spark.sql`: of the largest ones, one row in a hundred is loaded with a wrong value, which a MERGE
corrects. So their queries read log rows. Both sides are in one session of Spark, in turns, and their answers are compared: a wrong answer
has no ratio, and the command fails.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import shlex
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

from benchmarks import environment
from benchmarks.tpcds_data import KEYS, make_tables, queries

GOAL = 1.1
"""The greatest total time, in that over plain files."""
BYTES_OF_BUCKET = 32 * 1024**2
"""Of a source file, for the number of buckets."""
CHANGED_TABLES = ("store_sales", "catalog_sales", "web_sales", "store_returns", "catalog_returns", "web_returns", "inventory")
_MEASURES = {
    "store_sales": "ss_quantity",
    "catalog_sales": "cs_quantity",
    "web_sales": "ws_quantity",
    "store_returns": "sr_return_quantity",
    "catalog_returns": "cr_return_quantity",
    "web_returns": "wr_return_quantity",
    "inventory": "inv_quantity_on_hand",
}
"""A column of each table that is loaded wrong in some rows."""
_LAST_LIMIT = re.compile(r"\blimit\s+\d+\s*;?\s*$", re.IGNORECASE)
_DIGITS = 9
"""Of floating numbers that are compared: a sum depends on the order of its rows."""


@dataclass(slots=True)
class QueryResult:
    """One query. Seconds of each round, by side. `wrong`: how the answers differ, or why a side has none; None: they are equal."""

    query: str
    plain_s: list[float] = field(default_factory=list)
    objcat_s: list[float] = field(default_factory=list)
    rows: int = 0
    wrong: str | None = None


@contextmanager
def sessions(
    place: Path, source: Path, *, memory: str, cores: int, keyed: bool, changed: bool, say: Callable[[str], None]
) -> Iterator[tuple[Any, Any]]:
    """A session with views of the plain files, and one whose current namespace has the tables of objcat.

    keyed: whether the tables have a key; else their rows stay in the order of the plain files. changed: whether a MERGE changes them.
    """
    from pyspark.sql import SparkSession

    import objcat.spark

    builder: Any = SparkSession.builder
    for name, value in {
        "spark.master": f"local[{cores}]",
        "spark.driver.memory": memory,
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.local.dir": str(place / "spark"),
        "spark.sql.warehouse.dir": str(place / "warehouse"),
        "spark.sql.shuffle.partitions": str(2 * cores),
        "spark.sql.session.timeZone": "UTC",
    }.items():
        builder = builder.config(name, value)
    plain = builder.getOrCreate()
    try:
        plain.sparkContext.setLogLevel("ERROR")
        own = plain.newSession()
        objcat.spark.configure(own, str(place / "lake"), name="lake")
        own.sql("CREATE NAMESPACE lake.tpcds")
        for name in KEYS:
            file = source / f"{name}.parquet"
            plain.read.parquet(str(file)).createOrReplaceTempView(name)
            say(f"loading {name}")
            _load(own, name, file, keyed=keyed, changed=changed and name in CHANGED_TABLES)
        own.sql("USE lake.tpcds")
        yield plain, own
    finally:
        plain.stop()


def _load(spark: Any, name: str, file: Path, *, keyed: bool, changed: bool) -> None:
    rows = spark.read.parquet(str(file))
    if not keyed:
        spark.sql(f"CREATE TABLE lake.tpcds.{name} USING objcat AS SELECT * FROM {{rows}}", rows=rows)
        return
    key, measure = KEYS[name], _MEASURES.get(name, "")
    some = f"pmod(hash({', '.join(key)}), 100) = 0"
    columns = ", ".join(f"if({some}, {one} + 1, {one}) AS {one}" if changed and one == measure else one for one in rows.columns)
    buckets = max(1, math.ceil(file.stat().st_size / BYTES_OF_BUCKET))
    spark.sql(
        f"CREATE TABLE lake.tpcds.{name} USING objcat CLUSTERED BY ({', '.join(key)}) INTO {buckets} BUCKETS "
        f"TBLPROPERTIES ('key' = '{', '.join(key)}') AS SELECT {columns} FROM {{rows}}",
        rows=rows,
    )
    if changed:
        on = " AND ".join(f"t.{one} = s.{one}" for one in key)
        spark.sql(
            f"MERGE INTO lake.tpcds.{name} t USING {{rows}} s ON {on} WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *",
            rows=rows.where(some),
        )


def run_query(name: str, text: str, plain: Any, own: Any, rounds: int, *, flip: bool) -> QueryResult:
    """Run a query on both sides in turns, and compare the answers. `flip`: begin with objcat."""
    result = QueryResult(name)
    answers: dict[str, list[tuple[Any, ...]]] = {}
    sides = {"plain": (plain, result.plain_s), "objcat": (own, result.objcat_s)}
    for number in range(rounds):
        for side in sorted(sides, reverse=flip == bool(number % 2)):
            spark, seconds = sides[side]
            began = time.perf_counter()
            try:
                rows = spark.sql(text).collect()
            except Exception as error:  # noqa: BLE001 - the other queries run all the same
                # The second line names the Java class.
                result.wrong = f"{side}: {type(error).__name__}: {' '.join(str(error).splitlines()[:2])}"
                return result
            seconds.append(time.perf_counter() - began)
            answers[side] = comparable(rows)
    result.rows = len(answers["plain"])
    if answers["plain"] != answers["objcat"]:
        # Rows that are equal in ORDER BY may be in any order, and LIMIT then chooses any of them.
        whole = _LAST_LIMIT.sub("", text)
        result.wrong = difference(comparable(plain.sql(whole).collect()), comparable(own.sql(whole).collect()))
    return result


def comparable(rows: Sequence[Sequence[Any]]) -> list[tuple[Any, ...]]:
    """The rows in one order, floating numbers rounded."""
    return sorted((tuple(map(_rounded, row)) for row in rows), key=repr)


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}")
    return value.normalize() if isinstance(value, Decimal) else value


def difference(wanted: Sequence[tuple[Any, ...]], found: Sequence[tuple[Any, ...]]) -> str | None:
    """How rows differ from those wanted; None where they do not."""
    if wanted == found:
        return None
    if len(wanted) != len(found):
        return f"{len(found)} rows instead of {len(wanted)}"
    return next(f"{b} instead of {a}" for a, b in zip(wanted, found, strict=True) if a != b)


def totals(results: Sequence[QueryResult]) -> Mapping[str, float]:
    """The seconds of all queries, each by its median, and their ratio."""
    right = [result for result in results if result.wrong is None]
    plain, own = (sum(statistics.median(getattr(result, name)) for result in right) for name in ("plain_s", "objcat_s"))
    return {"plain_s": plain, "objcat_s": own, "ratio": own / plain if plain else math.nan}


def main(arguments: Sequence[str]) -> int:
    """Measure and show a line for each query. Returns 0 when all answers are equal, else 1."""
    parser = argparse.ArgumentParser(prog="./dev bench tpcds", description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--scale", type=float, default=1.0, help="of TPC-DS: 1 has 2,880,000 rows of store_sales")
    parser.add_argument("--rounds", type=int, default=3, help="how often each query runs on each side; the first one does not count")
    parser.add_argument("--only", nargs="*", metavar="QUERY", help="such as q1 q14a")
    parser.add_argument("--without-logs", action="store_true", help="leave out the MERGE, so that no query reads log rows")
    parser.add_argument(
        "--without-keys", action="store_true", help="tables without keys, in the order of the plain files, without the MERGE"
    )
    parser.add_argument("--memory", default="4g", help="of the Spark driver")
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--directory", type=Path, help="where to create the tables; the default is a temporary directory")
    parser.add_argument("--json", type=Path, metavar="FILE")
    given = parser.parse_args(arguments)
    texts = queries()
    if given.only:
        texts = {name: text for name, text in texts.items() if name in given.only}
    if not texts:
        parser.error(f"There is no query {given.only[0]!r}. There are {', '.join(queries())}.")

    def say(text: str) -> None:
        sys.stderr.write(f"{text}\n")

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    command, began = shlex.join(["./dev", "bench", "tpcds", *arguments]), environment.now()
    source = make_tables(given.scale, say)
    kinds = {"keyed": not given.without_keys, "changed": not given.without_logs and not given.without_keys}
    results: list[QueryResult] = []
    with (
        tempfile.TemporaryDirectory(prefix="objcat-bench-", dir=given.directory) as place,
        sessions(Path(place), source, memory=given.memory, cores=given.cores, say=say, **kinds) as (plain, own),
    ):
        for number, (name, text) in enumerate(texts.items()):
            one = run_query(name, text, plain, own, given.rounds, flip=bool(number % 2))
            if given.rounds > 1:
                one.plain_s, one.objcat_s = one.plain_s[1:], one.objcat_s[1:]
            results.append(one)
            say(f"{name}: {one.wrong or _told(one)}")
            if given.json is not None:
                told = {**environment.machine(command, began=began), "store": "local disk", "Spark driver memory": given.memory}
                found = {"environment": told, "totals": totals(results), "results": [asdict(each) for each in results]}
                given.json.write_text(json.dumps(found, indent=1))
    wrong = [result for result in results if result.wrong is not None]
    whole = totals(results)
    print(
        f"{len(results)} queries, {len(results) - len(wrong)} with equal answers: objcat {whole['objcat_s']:.1f} s, "
        f"plain Parquet {whole['plain_s']:.1f} s: {whole['ratio']:.2f}x (goal {GOAL}x)"
    )
    for result in wrong:
        print(f"WRONG: {result.query}: {result.wrong}")
    return 1 if wrong else 0


def _told(result: QueryResult) -> str:
    plain, own = statistics.median(result.plain_s), statistics.median(result.objcat_s)
    return f"objcat {own:.2f} s, plain {plain:.2f} s: {own / plain:.2f}x, {result.rows} rows"
