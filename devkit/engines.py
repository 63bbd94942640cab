"""The engines that read the mirrors of a table: the environment of each, from a lock file of its own, and its files from Maven.

Each runs as a process of its own, `tests/engines/readers`, because their packages do not fit together and some of them crash.
"""

from __future__ import annotations

import os
import tarfile
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from devkit import toolchain
from devkit.environments import Artifact, environment_dir, has_artifacts, locked_artifacts, locked_environment, locked_versions
from devkit.paths import ROOT, cache_dir, file_lock

MirrorFormat = Literal["iceberg", "delta"]


@dataclass(frozen=True, slots=True)
class ReadingEngine:
    """An engine with its pinned environment.

    Args:
        title: Its name for people.
        lock: Its file in `requirements/`.
        package: The package of that file whose version is the engine's.
        reader: Its module in `tests/engines/readers`.
        artifacts: Its files of Maven.
        formats: What it reads.
        needs_java: Whether its process needs a Java of the machine.
        version: Its version where no package of the lock file has it.
    """

    title: str
    lock: str
    package: str
    reader: str
    artifacts: tuple[Artifact, ...] = ()
    formats: tuple[MirrorFormat, ...] = ("iceberg", "delta")
    needs_java: bool = False
    version: str | None = None

    @property
    def versions(self) -> str:
        """The version of the engine, and those of the files that teach it a format."""
        extra = [f"{artifact.coordinate.split(':')[1]} {artifact.coordinate.split(':')[2]}" for artifact in self.artifacts]
        own = self.version or locked_versions(self.lock)[self.package]
        return ", ".join([own, *(extra if self.version is None else [])])

    def is_installed(self) -> bool:
        """Whether all of it is in the cache."""
        return environment_dir(self.lock).exists() and has_artifacts(self.artifacts)

    def install(self) -> None:
        """Install what is missing. Raises InstallError or ToolchainError."""
        locked_environment(self.lock)
        locked_artifacts(self.artifacts)

    def environment(self) -> dict[str, str]:
        """The variables of its process."""
        variables = toolchain.run_environment()
        python = str(environment_dir(self.lock) / "bin" / "python")
        for name in ("SPARK_HOME", "VIRTUAL_ENV"):
            variables.pop(name, None)
        variables |= {
            "PYSPARK_PYTHON": python,
            "PYSPARK_DRIVER_PYTHON": python,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "TZ": "UTC",
            "PYTHONPATH": str(ROOT),
        }
        variables["OBJCAT_TRINO"] = str(TRINO)
        variables["OBJCAT_JARS"] = ",".join(map(str, locked_artifacts(self.artifacts)))
        if self.needs_java:
            variables["JAVA_HOME"] = str(toolchain.java_home())
        return variables


_ICEBERG_JAR = Artifact(
    "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0", "3123c3798af642dd537230923548e013ef41cc28b6626e5225808cf5670a0f82"
)
_DELTA_JARS = (
    Artifact("io.delta:delta-spark_4.1_2.13:4.4.0", "75a9400986853c061f5109f012547de2545a5759e5e752e5ef633dabe16a4f10"),
    Artifact("io.delta:delta-storage:4.4.0", "c46735481fa8e326b0957be02b4420cbcab4b325bb08009b7f2045a95133f1cc"),
)
_TRINO_SERVER = Artifact("io.trino:trino-server:476:tar.gz", "cfd5accde17e8ebd251eeeb78aed1f490e77bb3a164d95a0f454bf8a7c1cbd3f")

ENGINES: Mapping[str, ReadingEngine] = {
    "duckdb": ReadingEngine("DuckDB", "engine-duckdb", "duckdb", "read_duckdb"),
    "spark": ReadingEngine("Spark", "engine-spark", "pyspark", "read_spark", artifacts=(_ICEBERG_JAR, *_DELTA_JARS), needs_java=True),
    "pyiceberg": ReadingEngine("pyiceberg", "engine-pyiceberg", "pyiceberg", "read_pyiceberg", formats=("iceberg",)),
    "polars": ReadingEngine("polars", "engine-polars", "polars", "read_polars"),
    "deltalake": ReadingEngine("deltalake (delta-rs)", "engine-deltalake", "deltalake", "read_deltalake", formats=("delta",)),
    "chdb": ReadingEngine("ClickHouse (chDB)", "engine-chdb", "chdb-core", "read_chdb"),
    "daft": ReadingEngine("daft", "engine-daft", "daft", "read_daft"),
    "trino": ReadingEngine("Trino", "engine-trino", "trino", "read_trino", artifacts=(_TRINO_SERVER,), version="476"),
}
"""By name. Trino needs about 3 GB and most of a minute to start, so it takes part in runs of everything alone."""
AT_NIGHT = ("trino",)


TRINO = cache_dir() / "peers" / "trino-server-476"


def trino_server() -> Path:
    """The unpacked server of Trino. Raises InstallError or ToolchainError."""
    target = TRINO
    if target.exists():
        return target
    (archive,) = locked_artifacts([_TRINO_SERVER])
    with file_lock(target.with_name(target.name + ".lock"), "another process is unpacking Trino"):
        if not target.exists():
            toolchain.check_may_install("Trino")
            with tempfile.TemporaryDirectory(dir=target.parent) as building:
                with tarfile.open(archive) as tar:
                    tar.extractall(building, filter="data")
                os.replace(Path(building, "trino-server-476"), target)
    return target
