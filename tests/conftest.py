"""Fixtures for every suite: real servers on loopback, the fault proxy in front of them, one Spark session; and the options of a run."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest

from devkit import toolchain
from devkit.fault_proxy import FaultProxy
from devkit.handle import ServerHandle
from devkit.servers import ServerName, Servers
from tests.effort import ALL_VARIABLE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COUNTS_VARIABLE = "OBJCAT_TEST_COUNTS"
"""Where a run leaves how many tests had which outcome, for `./dev test`, which adds up its runs."""

hypothesis.settings.register_profile("local", deadline=None, print_blob=True)
hypothesis.settings.register_profile("ci", deadline=None, print_blob=True, derandomize=True, database=None)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "local")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all", action="store_true", help="run the slow tests too")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--all"):
        return
    slow = [item for item in items if item.get_closest_marker("slow")]
    config.hook.pytest_deselected(items=slow)
    items[:] = [item for item in items if not item.get_closest_marker("slow")]


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if path := os.environ.get(COUNTS_VARIABLE):
        counts = Counter({outcome: len(reports) for outcome, reports in terminalreporter.stats.items() if outcome})
        Path(path).write_text(json.dumps(counts))


def pytest_configure(config: pytest.Config) -> None:
    """Tests know how hard to try; nothing of the user's own cloud settings reaches them, and loopback is never asked through a proxy."""
    if config.getoption("--all"):
        os.environ[ALL_VARIABLE] = "1"
    for name in list(os.environ):
        if name.startswith(("AWS_", "AZURE_", "GOOGLE_", "STORAGE_EMULATOR")):
            del os.environ[name]
    os.environ.update(
        AWS_CONFIG_FILE=os.devnull, AWS_SHARED_CREDENTIALS_FILE=os.devnull, AWS_EC2_METADATA_DISABLED="true", NO_PROXY="127.0.0.1,localhost"
    )
    os.environ["no_proxy"] = os.environ["NO_PROXY"]


@pytest.fixture(scope="session")
def _running_servers() -> Iterator[Servers]:
    with Servers() as running:
        yield running


@pytest.fixture(scope="session")
def servers(_running_servers: Servers) -> Callable[[ServerName], ServerHandle]:
    """`servers("versitygw")`: the handle of that server with a bucket that all tests share, started when first asked for.

    `servers("versitygw").fresh_bucket()` is a bucket of one's own.
    """
    return _running_servers.start


@pytest.fixture
def fault_proxy() -> Iterator[Callable[[ServerHandle], tuple[FaultProxy, ServerHandle]]]:
    """`proxy, through = fault_proxy(handle)`: a proxy without faults before the server, and the handle that goes through it."""
    with ExitStack() as stack:

        def wrap(handle: ServerHandle) -> tuple[FaultProxy, ServerHandle]:
            proxy = stack.enter_context(FaultProxy(handle.endpoint, handle.scheme))
            return proxy, handle.through(proxy.url)

        yield wrap


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """One quiet local Spark session with two threads."""
    from pyspark.sql import SparkSession

    os.environ["JAVA_HOME"] = str(toolchain.java_home())
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": "2g",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": "4",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
        "spark.local.dir": str(tmp_path_factory.mktemp("local")),
    }
    builder = SparkSession.builder.master("local[2]").appName("objcat tests")
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()
