"""Other tools that bring changes of a database into a lake, on the same changes as `objcat ingest`.

dlt: see `benchmarks.peers.ingest_dlt` for what it does and what it does not see. Debezium, Kafka and Spark into Hudi: see
`benchmarks.ingest_debezium`. `NOT_MEASURED` says which tools are not measured, and why.
"""

from __future__ import annotations

import shutil
import statistics
from collections.abc import Callable, Mapping
from pathlib import Path

from benchmarks.ingest_debezium import HUDI, measure_debezium
from benchmarks.ingest_sources import PostgresBench
from benchmarks.ingest_works import STREAM_ROWS, stream_sample
from benchmarks.measured import Took, measure
from devkit import environments

DLT = "dlt, postgres"
LOCK = "peer-dlt"
NOT_MEASURED: Mapping[str, str] = {
    "dlt with pg_replication": (
        "no package on PyPI has that source: `dlt init` copies it from a repository, and dlt alone has no reader of the log"
    ),
    "Hudi Streamer": (
        "its bundle (hudi-utilities-slim-bundle_2.12) was not served where the suite was made, so it could not be pinned. Spark's "
        "Structured Streaming does its part, with the columns and the payload class of Hudi's source for Debezium"
    ),
}


def measure_dlt(place: Path, *, changes: int, rounds: int, say: Callable[[str], None]) -> dict[str, float]:
    """A backlog of changes that dlt takes in one run, as `measure_streams` measures it.

    Raises:
        InstallError: its environment cannot be made.
        RunFailed: it failed, or the lake lacks a row.
    """
    python = environments.locked_environment(LOCK)
    folder = place / "dlt"
    samples = []
    with PostgresBench() as source:
        source.fill(STREAM_ROWS)
        url = f"postgresql+psycopg2://objcat@127.0.0.1:{source.port}/postgres"

        def run(what: str) -> Took:
            folder.mkdir(parents=True, exist_ok=True)
            return measure("benchmarks.peers.ingest_dlt", [what, url, str(folder)], python=python)

        run("load")
        gone = 0
        for turn in range(rounds):
            idle = run("load")
            source.change(changes)
            server_s = source.cpu_s()
            took = run("load")
            samples.append(stream_sample(took, idle, changes, source.cpu_s() - server_s))
            gone = int(run("check").output.split()[-1])
            say(f"stream, {DLT}: round {turn + 1} of {rounds}, {samples[-1]['changes for each CPU second']:,.0f} for each CPU second")
    shutil.rmtree(folder)
    medians = {name: statistics.median(one[name] for one in samples) for name in samples[0]}
    return {"changes": float(changes), **medians, "deleted rows that are still there": float(gone)}


PEERS: Mapping[str, tuple[str, Callable[..., dict[str, float]]]] = {"dlt": (DLT, measure_dlt), "debezium": (HUDI, measure_debezium)}
"""By what `--peers` calls them: their names in tables, and what measures them."""
