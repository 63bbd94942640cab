"""The sides of the benchmarks of tables: objcat, the tools that its users would use instead, and plain Spark as the floor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from devkit.environments import Artifact


@dataclass(frozen=True, slots=True)
class Peer:
    """A side.

    Args:
        engine: `spark`, or `local` for a process without Spark.
        lock: Its file in `requirements/`; None: the project's own environment.
        hadoop: The version in its Spark, which the jars that reach S3 must match.
        only_named: It takes part in the chains that name it, and in no others.
    """

    name: str
    engine: Literal["spark", "local"]
    role: Literal["objcat", "peer", "floor"]
    module: str
    lock: str | None = None
    jars: tuple[Artifact, ...] = ()
    hadoop: str | None = None
    only_named: bool = False


_ALL = (
    Peer("objcat", "spark", "objcat", "benchmarks.peers.objcat_spark", hadoop="3.5.0"),
    Peer("objcat-sql", "spark", "objcat", "benchmarks.peers.objcat_sql", hadoop="3.5.0", only_named=True),
    Peer("plain", "spark", "floor", "benchmarks.peers.plain"),
    Peer(
        "hudi",
        "spark",
        "peer",
        "benchmarks.peers.hudi",
        "peer-hudi",
        (Artifact("org.apache.hudi:hudi-spark3.5-bundle_2.12:1.2.0", "cc79fba00822f3a6c3a860df99375c2e3d4a034d037dbf4213a4966a706a7676"),),
        hadoop="3.3.4",
    ),
    Peer(
        "iceberg",
        "spark",
        "peer",
        "benchmarks.peers.iceberg",
        "peer-iceberg",
        (
            Artifact(
                "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0",
                "3123c3798af642dd537230923548e013ef41cc28b6626e5225808cf5670a0f82",
            ),
        ),
        hadoop="3.4.2",
    ),
    Peer(
        "delta",
        "spark",
        "peer",
        "benchmarks.peers.delta",
        "peer-delta",
        (
            Artifact("io.delta:delta-spark_4.2_2.13:4.4.0", "27d4fd8b1f879535c573ed1c718177d6a27f24d3e626ba02e216369725721ead"),
            Artifact("io.delta:delta-storage:4.4.0", "c46735481fa8e326b0957be02b4420cbcab4b325bb08009b7f2045a95133f1cc"),
        ),
        hadoop="3.5.0",
    ),
    Peer("objcat-local", "local", "objcat", "benchmarks.peers.objcat_local"),
    Peer("duckdb", "local", "floor", "benchmarks.peers.duckdb_parquet"),
    Peer("duckdb-buckets", "local", "floor", "benchmarks.peers.duckdb_buckets"),
    Peer("deltalake", "local", "peer", "benchmarks.peers.delta_rs", "peer-local"),
    Peer("pyiceberg", "local", "peer", "benchmarks.peers.iceberg_py", "peer-local"),
)
SIDES: Mapping[str, Peer] = {side.name: side for side in _ALL}
PEERS: tuple[str, ...] = tuple(side.name for side in _ALL if side.role == "peer")
"""What `--peers` may name; objcat and the floor take part whenever their engine does."""
