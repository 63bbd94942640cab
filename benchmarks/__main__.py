"""`python -m benchmarks SUITE ...`."""

from __future__ import annotations

import sys

USAGE = """\
Benchmark suites, each with --help:

  ./dev bench fileio      FileIO beside the SDKs, on the same servers
  ./dev bench metadata    tables of very many files and commits
  ./dev bench index       upserts as a table grows, under each index
  ./dev bench commit      tiny commits in turn, and by many processes at once, beside deltalake
  ./dev bench write       loads and upserts beside Hudi, Iceberg, Delta Lake, deltalake and pyiceberg
  ./dev bench read        scans, lookups and joins beside Hudi, Iceberg, Delta Lake and plain Spark
  ./dev bench services    compaction beside Hudi, Iceberg and Delta Lake
  ./dev bench local       the works of read and services without Spark, beside deltalake and pyiceberg
  ./dev bench smoke       the works of all suites on a few rows: no figures, but every answer is checked"""


def main(arguments: list[str]) -> int:
    match arguments:
        case ["fileio", *rest]:
            from benchmarks import fileio_bench

            return fileio_bench.main(rest)
        case ["metadata", *rest]:
            from benchmarks import metadata_bench

            return metadata_bench.main(rest)
        case ["index", *rest]:
            from benchmarks import index_bench

            return index_bench.main(rest)
        case ["commit", *rest]:
            from benchmarks import commit_bench

            return commit_bench.main(rest)
        case ["smoke", *rest]:
            from benchmarks import smoke

            return smoke.main(rest)
        case [("write" | "read" | "services" | "local") as suite, *rest]:
            from benchmarks import tables_bench

            return tables_bench.main(suite, rest)
    print(USAGE, file=sys.stdout if arguments in (["-h"], ["--help"]) else sys.stderr)
    return 0 if arguments in (["-h"], ["--help"]) else 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
