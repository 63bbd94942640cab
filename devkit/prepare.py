"""What tests need is installed before they run: programs, toolchains, older PySparks and jars. Each need has a name."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from devkit import hdfs, kafka, nginx, toolchain
from devkit.databases import install_mariadb, install_postgres, mariadb_program, postgres_programs
from devkit.engines import AT_NIGHT, ENGINES, TRINO, trino_server
from devkit.environments import has_artifacts, listed_artifacts, locked_artifacts
from devkit.install import PROGRAMS, InstallError, installed_program
from devkit.install import is_installed as program_is_installed
from devkit.mysql_server import install_mysql, mysql_folder
from devkit.paths import ROOT, cache_dir, file_lock
from devkit.tiers import OLDER

_RESOLVE = """
import json, sys
from pyspark.sql import SparkSession
builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").config("spark.driver.host", "127.0.0.1")
for name, value in json.loads(sys.argv[1]).items():
    builder = builder.config(name, value)
builder.getOrCreate().stop()
"""


@dataclass(frozen=True, slots=True)
class Need:
    """what: for people. present: whether it is there. install: makes it so. after: the needs that come before it."""

    what: str
    present: Callable[[], bool]
    install: Callable[[], object]
    after: tuple[str, ...] = ()


def install(names: Collection[str]) -> None:
    """Install what is missing of these needs, two at a time, with a line for each. Raises ToolchainError or InstallError."""
    wanted = {name for need in names for name in (*NEEDS[need].after, need)}
    first = {name for need in wanted for name in NEEDS[need].after}
    for some in (first, wanted - first):
        missing = sorted(name for name in some if not NEEDS[name].present())
        with ThreadPoolExecutor(2) as sides:
            for done in [sides.submit(_install, NEEDS[name]) for name in missing]:
                done.result()


def older_pyspark(version: str) -> Path:
    """The folder of an older supported PySpark, one of `OLDER`. Installs it when it is missing. Raises ToolchainError."""
    return _locked(f"spark-{version}", "pyspark")


def spark_connect() -> Path:
    """The folder of the packages that PySpark needs for Spark Connect. Installs them when missing. Raises ToolchainError."""
    return _locked("spark-connect", "spark-connect")


def spark_connect_server() -> list[Path]:
    """The jars of the Spark Connect server for PySpark 3.5; later versions have it. Fetches them when missing. Raises InstallError."""
    return locked_artifacts(listed_artifacts("spark-connect-3.5"))


def package_builder() -> Path:
    """The folder of `build`, which makes the distributions. Installs it when it is missing. Raises ToolchainError."""
    return _locked("build", "build")


def site_builder() -> Path:
    """The folder of MkDocs, which builds the site of the pages. Installs it when it is missing. Raises ToolchainError."""
    return _locked("docs", "docs")


def dbt() -> Path:
    """The folder of dbt and its adapter for Spark. Installs them when they are missing. Raises ToolchainError."""
    return _locked("dbt", "dbt")


def hdfs_client() -> Path:
    """The folder of the client of HDFS. Installs it when it is missing. Raises ToolchainError."""
    return _locked("hdfs", "hdfs-native")


def s3_connector() -> Path:
    """The Ivy directory with the jars by which this PySpark reaches S3. Fills it first. Raises InstallError or ToolchainError."""
    import pyspark

    directory = cache_dir() / "ivy"
    done = _connector_mark(pyspark.__version__)
    if done.exists():
        return directory
    toolchain.check_may_install("the connector of Spark for S3")
    # One after the other, also for different versions: Ivy shares files of its cache.
    with file_lock(directory / ".lock", "another process is fetching the connector of Spark for S3"):
        if not done.exists():
            environment = {**toolchain.run_environment(), "JAVA_HOME": str(toolchain.java_home()), "SPARK_LOCAL_IP": "127.0.0.1"}
            settings = {**_connector_settings(), "spark.jars.ivy": str(directory)}
            command = [sys.executable, "-c", _RESOLVE, json.dumps(settings)]
            ended = subprocess.run(
                command, cwd=ROOT, env=environment, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False
            )
            if ended.returncode != 0:
                raise InstallError(f"Spark could not fetch its connector for S3. Its message: {ended.stderr[-2000:]} Run it again.")
            done.touch()
    return directory


def _s3_connector_of(version: str) -> None:
    """The same for an older PySpark, in a process that imports that one."""
    search = os.pathsep.join(filter(None, [str(older_pyspark(version)), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": search}
    command = [sys.executable, "-c", "from devkit.prepare import s3_connector; s3_connector()"]
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    if ended.returncode != 0:
        raise InstallError(f"PySpark {version} could not fetch its connector for S3. Its message: {ended.stderr[-2000:]} Run it again.")


def _locked(lock: str, name: str) -> Path:
    version = toolchain.locked_version(lock)
    return toolchain.install_locked(lock, _locked_dir(lock, name), f"{name} {version}")


def _locked_dir(lock: str, name: str) -> Path:
    return cache_dir() / "tools" / f"{name}-{toolchain.locked_version(lock)}"


def _connector_settings() -> dict[str, str]:
    from pyspark.sql import SparkSession

    import objcat.spark

    keys = {"endpoint": "http://127.0.0.1:1", "access_key": "a", "secret_key": "s", "region": "us-east-1"}
    builder = objcat.spark.configure(SparkSession.Builder(), "s3://any", keys)
    return {name: str(value) for name, value in builder._options.items() if name.startswith("spark.jars")}


def _connector_mark(pyspark: str) -> Path:
    """The file that exists when the jars for this version of PySpark do."""
    return cache_dir() / "ivy" / f"connector-of-{pyspark}.done"


def _install(need: Need) -> None:
    began_s = time.monotonic()
    need.install()
    print(f"dev: installed {need.what} in {time.monotonic() - began_s:.0f} s", file=sys.stderr, flush=True)


def _by_day() -> list[str]:
    return [name for name in ENGINES if name not in AT_NIGHT]


def _has_engine(name: str) -> bool:
    return ENGINES[name].is_installed()


def _install_engines() -> None:
    for name in _by_day():
        ENGINES[name].install()


def _install_trino() -> None:
    ENGINES["trino"].install()
    trino_server()


def _tool(name: str) -> Need:
    install = toolchain.java_home if name == "java" else lambda: toolchain.tool(name)
    return Need(name, lambda: toolchain.is_installed(name), install)


def _program(name: str, tool: str) -> Need:
    what = f"{name} {PROGRAMS[name].version}"
    return Need(what, lambda: program_is_installed(name), lambda: installed_program(name), (tool,))


def _older_pyspark(version: str) -> Need:
    return Need(
        f"PySpark {version}", lambda: _locked_dir(f"spark-{version}", "pyspark").exists(), lambda: older_pyspark(version), ("java",)
    )


def _older_connector(version: str) -> Need:
    def present() -> bool:
        return _connector_mark(toolchain.locked_version(f"spark-{version}")).exists()

    what = f"the connector of PySpark {version} for S3"
    return Need(what, present, lambda: _s3_connector_of(version), ("java", f"pyspark-{version}"))


NEEDS: Mapping[str, Need] = {
    "java": _tool("java"),
    "go": _tool("go"),
    "node": _tool("node"),
    "versitygw": _program("versitygw", "go"),
    "fake-gcs-server": _program("fake-gcs-server", "go"),
    "gcsemulator": _program("gcsemulator", "go"),
    "azurite": _program("azurite", "node"),
    "spark": Need("Spark", lambda: True, lambda: None, ("java",)),
    **{f"pyspark-{version}": _older_pyspark(version) for version in OLDER},
    "spark-connect": Need("Spark Connect", lambda: _locked_dir("spark-connect", "spark-connect").exists(), spark_connect, ("java",)),
    "spark-connect-3.5": Need(
        "the server of Spark Connect 3.5",
        lambda: has_artifacts(listed_artifacts("spark-connect-3.5")),
        spark_connect_server,
        ("java",),
    ),
    "s3-connector": Need(
        "the connector of Spark for S3", lambda: _connector_mark(metadata.version("pyspark")).exists(), s3_connector, ("java",)
    ),
    **{f"s3-connector-{version}": _older_connector(version) for version in OLDER},
    "dbt": Need("dbt", lambda: _locked_dir("dbt", "dbt").exists(), dbt, ("java",)),
    "build": Need("build", lambda: _locked_dir("build", "build").exists(), package_builder),
    "engines": Need("engines that read mirrors", lambda: all(map(_has_engine, _by_day())), _install_engines, ("java",)),
    "trino": Need("Trino", lambda: _has_engine("trino") and TRINO.exists(), _install_trino),
    "hdfs": Need("HDFS", hdfs.is_installed, hdfs.install_hdfs, ("java",)),
    "hdfs-client": Need("the client of HDFS", lambda: _locked_dir("hdfs", "hdfs-native").exists(), hdfs_client),
    "postgres": Need("PostgreSQL", lambda: postgres_programs() is not None, install_postgres),
    "nginx": Need("nginx", nginx.is_installed, nginx.nginx_program),
    "mariadb": Need("MariaDB", lambda: mariadb_program() is not None, install_mariadb),
    "mysql": Need("MySQL", lambda: mysql_folder() is not None, install_mysql),
    "kafka": Need("Kafka and Kafka Connect", kafka.is_installed, kafka.install_kafka, ("java",)),
    "spark-kafka": Need(
        "the connector of Spark for Kafka",
        lambda: has_artifacts(listed_artifacts("spark-kafka")),
        lambda: locked_artifacts(listed_artifacts("spark-kafka")),
        ("java",),
    ),
    "mkdocs": Need("MkDocs", lambda: _locked_dir("docs", "docs").exists(), site_builder),
}
"""By name: what `[needs]` of `tests/tiers.toml` may ask for. moto and SeaweedFS are in the project's environment."""
