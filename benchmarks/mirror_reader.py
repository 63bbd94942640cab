"""Times scans of pairs of tables by DuckDB, in turns. Runs in the environment of DuckDB, see `benchmarks.mirror_scans`."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from tests.engines.readers.read_duckdb import _connect

COLUMNS = "count(*), sum(o_orderkey), sum(o_custkey), sum(o_totalprice), max(o_orderdate), max(o_clerk), max(o_comment)"


def main() -> None:
    """Read the request of the command line, and write the samples."""
    request = json.loads(sys.argv[1])
    connection = _connect()
    found: dict[str, list[list[list[Any]]]] = {what: [] for what in request["sources"]}
    for turn in range(request["rounds"] + 1):
        for what, pair in request["sources"].items():
            sample: list[list[Any]] = [[], []]
            for side in (0, 1) if turn % 2 else (1, 0):
                began_s, began_cpu_s = time.perf_counter(), time.process_time()
                answer = connection.execute(f"SELECT {COLUMNS} FROM {pair[side]}").fetchall()
                sample[side] = [time.perf_counter() - began_s, time.process_time() - began_cpu_s, str(answer)]
            if turn:
                found[what].append(sample)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
