"""Scans of mirrored tables by DuckDB, beside the same rows as written by pyiceberg and deltalake themselves, in as many files."""

from __future__ import annotations

import json
import statistics
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import WriterProperties, write_deltalake
from pyiceberg.catalog.sql import SqlCatalog

import objcat
from benchmarks.data import Data
from benchmarks.mirror_writes import orders_table
from benchmarks.peers.configuration import PYICEBERG_TABLE
from benchmarks.works import BUCKETS, CODEC_LEVEL
from devkit.engines import ENGINES
from devkit.environments import environment_dir
from devkit.paths import ROOT
from objcat.metadata.properties import MIRRORS

STATES = ("compacted", "1 % superseded", "10 % superseded")
MASKS = ("Iceberg", "Delta")


def measure_scans(place: Path, data: Data, rounds: int, say: Callable[[str], None]) -> dict[str, dict[str, float]]:
    """Seconds and CPU seconds of scans, by format and state: of the mirror, of the peer's own table, and the ratio over pairs.

    Raises InstallError and ToolchainError, if DuckDB cannot be installed, and AssertionError when two sides answer differently.
    """
    place.mkdir(parents=True, exist_ok=True)
    lake = objcat.connect(place / "lake")
    catalog = SqlCatalog("scans", uri=f"sqlite:///{place}/catalog.db", warehouse=f"file://{place}/pyiceberg")
    catalog.create_namespace("db")
    sources: dict[str, tuple[str, str]] = {}
    for number, state in enumerate(STATES):
        say(f"making the tables: {state}")
        table = orders_table(lake, f"db.orders_{number}", data, {MIRRORS: "iceberg,delta"})
        table.maintenance.compact()
        for batch in ("one", "ten")[:number][-1:]:
            table.upsert(pq.read_table(data.batch("orders", batch)))
        table.maintenance.mirror()
        groups = table.snapshot.file_groups(table._context.manifests)
        assert any(group.logs for group in groups) == bool(number), "the table is not in the state that is measured"
        rows = table.scan().to_arrow()
        each = -(-rows.num_rows // BUCKETS)
        parts = [rows.slice(at, each) for at in range(0, rows.num_rows, each)]
        prefix = table.url.removeprefix("file://")
        ours = f"iceberg_scan('{prefix}/metadata/v{table.snapshot.slot + 1}.metadata.json')"
        sources[f"Iceberg v2, {state}"] = (ours, f"iceberg_scan('{_own_iceberg(catalog, f'own_{number}', parts)}')")
        sources[f"Delta, {state}"] = (f"delta_scan('{prefix}')", f"delta_scan('{_own_delta(place / f'delta_{number}', parts)}')")
    say("scanning")
    return {what: _compared(what, samples) for what, samples in _read(sources, rounds).items()}


def _own_iceberg(catalog: SqlCatalog, name: str, parts: list[pa.Table]) -> str:
    """Where the metadata of a table that pyiceberg wrote is."""
    table = catalog.create_table(f"db.{name}", parts[0].schema, properties=dict(PYICEBERG_TABLE))
    with table.transaction() as transaction:
        for part in parts:
            transaction.append(part)
    return table.metadata_location.removeprefix("file://")


def _own_delta(place: Path, parts: list[pa.Table]) -> str:
    """Where a table that deltalake wrote is."""
    for part in parts:
        properties = WriterProperties(compression="ZSTD", compression_level=CODEC_LEVEL)
        write_deltalake(str(place), part, mode="append", writer_properties=properties)
    return str(place)


def _read(sources: dict[str, tuple[str, str]], rounds: int) -> dict[str, list[list[list[Any]]]]:
    """What a process of DuckDB measures: by source, for each round the two sides, each with seconds, CPU seconds and its answer."""
    engine = ENGINES["duckdb"]
    engine.install()
    python = environment_dir(engine.lock) / "bin" / "python"
    command = [str(python), "-m", "benchmarks.mirror_reader", json.dumps({"sources": sources, "rounds": rounds})]
    done = subprocess.run(command, cwd=ROOT, env=engine.environment(), capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"DuckDB did not read the tables: {done.stderr[-2000:]}")
    found: dict[str, list[list[list[Any]]]] = json.loads(done.stdout)
    return found


def _compared(what: str, samples: list[list[list[Any]]]) -> dict[str, float]:
    for ours, own in samples:
        if ours[2] != own[2]:
            raise AssertionError(f"{what}: the mirror answers {ours[2]}, the other table {own[2]}")
    found: dict[str, float] = {}
    for at, figure in enumerate(("seconds", "CPU seconds")):
        ratios = [ours[at] / own[at] for ours, own in samples]
        found |= {
            f"mirror {figure}": statistics.median(ours[at] for ours, _ in samples),
            f"own table {figure}": statistics.median(own[at] for _, own in samples),
            f"ratio of {figure}": statistics.median(ratios),
            f"least ratio of {figure}": min(ratios),
            f"greatest ratio of {figure}": max(ratios),
        }
    return found
