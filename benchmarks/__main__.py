"""`python -m benchmarks SUITE ...` runs one suite."""

from __future__ import annotations

import sys
from importlib import import_module

USAGE = """\
Benchmark suites, each with --help:

  ./dev bench fileio      FileIO and the SDKs, on the same servers
  ./dev bench metadata    tables of very many files and commits
  ./dev bench mirrors     mirrors as Iceberg and Delta: their slots, what they add to commits, and scans by DuckDB and Spark
  ./dev bench ingest      databases into a lake: lag, snapshots, streams and memory, with the floor and with other tools
  ./dev bench growth      operations beside more and more files, commits, partitions and tables, in simulated time
  ./dev bench day         200 writers and 1,000 tables on a simulated store with rate limits
  ./dev bench index       upserts as a table grows, under each index
  ./dev bench commit      tiny commits, one by one and by many processes at once, with deltalake
  ./dev bench write       loads, upserts and deletes, under each index, with Hudi, Iceberg, Delta Lake, deltalake and pyiceberg
  ./dev bench read        scans, lookups, joins, changes and older versions, with Hudi, Iceberg, Delta Lake and plain Spark
  ./dev bench tpcds       the queries of TPC-DS by spark.sql, over tables of objcat and over plain Parquet
  ./dev bench in-place    queries of JSON logs: raw, over a copy as Parquet, and in place with 3 of 40 columns precomputed
  ./dev bench derived     a change of 0.1 %, followed by a derived table, by the whole query, and by dbt and pipelines of Spark
  ./dev bench services    compaction, clustering and cleaning, with Hudi, Iceberg and Delta Lake
  ./dev bench local       the works of read and services without Spark, with deltalake, pyiceberg and DuckDB
  ./dev bench requests    requests to S3 for small commits and for opening, counted at a proxy, with the same sides
  ./dev bench lookup      a new process that reads one row from a distant bucket: round trips, with deltalake and pyiceberg
  ./dev bench notes       writes benchmarks/results/configuration.md: how each side is configured, and why
  ./dev bench smoke       the works of all suites on a few rows: no figures, but every answer is checked"""

MODULES = {
    **{
        name: f"{name}_bench" for name in ("fileio", "metadata", "ingest", "index", "commit", "lookup", "growth", "day", "tpcds", "derived")
    },
    "mirrors": "mirror_bench",
    "in-place": "in_place_bench",
    "smoke": "smoke",
}


def main(arguments: list[str]) -> int:
    """Run one suite and return its exit status."""
    match arguments:
        case [suite, *rest] if suite in MODULES:
            found: int = import_module(f"benchmarks.{MODULES[suite]}").main(rest)
            return found
        case ["notes"]:
            from benchmarks.peers import fairness
            from devkit.paths import ROOT

            page = ROOT / fairness.PAGE
            page.write_text(fairness.written(page.read_text()))
            return 0
        case [("write" | "read" | "services" | "requests" | "local") as suite, *rest]:
            from benchmarks import tables_bench

            return tables_bench.main(suite, rest)
    print(USAGE, file=sys.stdout if arguments in (["-h"], ["--help"]) else sys.stderr)
    return 0 if arguments in (["-h"], ["--help"]) else 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
