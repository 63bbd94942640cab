"""Fixtures for every suite: real servers on loopback, the fault proxy in front of them, one Spark session; and the options of a run."""

from __future__ import annotations

import json
import os
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest

from devkit import prepare, tiers, toolchain
from devkit.fault_proxy import FaultProxy
from devkit.handle import ServerHandle
from devkit.runs import OUTCOME_VARIABLE
from devkit.servers import ServerName, Servers
from devkit.tiers import TIERS
from tests.effort import ALL_VARIABLE, SEED_VARIABLE
from tests.fileio.iam_store import start_iam_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

hypothesis.settings.register_profile("local", deadline=None, print_blob=True)
hypothesis.settings.register_profile("ci", deadline=None, print_blob=True, derandomize=True, database=None)
hypothesis.settings.register_profile("fresh", deadline=None, print_blob=True, database=None)

_times: dict[str, dict[str, Any]] = {}
"""By the id of a test: its tier, its seconds so far, and its reason to take long."""
BRIEF_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Options of every JVM that tests start, except with `--all`.

Most JVMs of tests live for a minute or two. The second compiler and the parallel collector would take more from two cores than they give
back in that time. At night they run as they do for users.
"""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--integration", action="store_true", help="run what is for before a merge too")
    parser.addoption("--all", action="store_true", help="run everything, as hard as it can, with fresh seeds")
    parser.addoption("--every-case", action="store_true", help="run all cases of the tests of these tiers, also those that wait for --all")
    parser.addoption("--tiers", help=f"run only these of {','.join(TIERS)}; without it, what is named runs up to integration")


def pytest_configure(config: pytest.Config) -> None:
    """Tests know how hard to try; nothing of the user's own cloud settings reaches them, and loopback is never asked through a proxy."""
    config.option.tiers = _chosen(config)
    config.option.all = "all" in config.option.tiers
    if config.option.all:
        os.environ[ALL_VARIABLE] = "1"
        os.environ.setdefault(SEED_VARIABLE, str(random.randrange(1 << 32)))
    else:
        os.environ.setdefault("JDK_JAVA_OPTIONS", BRIEF_JAVA)
    hypothesis.settings.load_profile("fresh" if config.option.all else "ci" if os.environ.get("CI") else "local")
    for name in list(os.environ):
        if name.startswith(("AWS_", "AZURE_", "GOOGLE_", "STORAGE_EMULATOR")):
            del os.environ[name]
    os.environ.update(
        AWS_CONFIG_FILE=os.devnull, AWS_SHARED_CREDENTIALS_FILE=os.devnull, AWS_EC2_METADATA_DISABLED="true", NO_PROXY="127.0.0.1,localhost"
    )
    os.environ["no_proxy"] = os.environ["NO_PROXY"]


def _chosen(config: pytest.Config) -> tuple[str, ...]:
    """The tiers that run."""
    if config.option.tiers:
        return tuple(config.option.tiers.split(","))
    if config.option.all:
        return TIERS
    named = config.args_source is pytest.Config.ArgsSource.ARGS
    return TIERS[:2] if named or config.option.integration else TIERS[:1]


def pytest_report_header(config: pytest.Config) -> str:
    fresh = f"; {SEED_VARIABLE}={os.environ[SEED_VARIABLE]} draws the same again" if config.option.all else ""
    return f"tiers: {', '.join(config.option.tiers)}{fresh}"


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is of other tiers. The tier of a test is the later one of its entry in `tests/tiers.toml` and its markers.

    Of a test with many cases, some wait for the last tier, unless every case is asked for.
    """
    table = tiers.table()
    begun: set[tuple[str, str]] = set()
    chosen: list[pytest.Item] = []
    others: list[pytest.Item] = []
    for item in items:
        name = item.nodeid.removeprefix("tests/")
        marked = [mark.args[0] for mark in item.iter_markers("tier")]
        tier = max([table.tier_of(name) or "default", *marked], key=TIERS.index)
        test = (name.partition("[")[0], tier)
        if not config.option.every_case and not table.is_chosen(name, first=test not in begun):
            tier = TIERS[-1]
        begun.add(test)
        reason = item.get_closest_marker("reason")
        _times[item.nodeid] = {"tier": tier, "seconds": 0.0, "reason": reason.args[0] if reason else None}
        (chosen if tier in config.option.tiers else others).append(item)
    config.hook.pytest_deselected(items=others)
    items[:] = chosen


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _times[report.nodeid]["seconds"] += report.duration


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if path := os.environ.get(OUTCOME_VARIABLE):
        counts = Counter({outcome: len(reports) for outcome, reports in terminalreporter.stats.items() if outcome})
        times = {name: time for name, time in _times.items() if time["seconds"]}
        Path(path).write_text(json.dumps({"counts": counts, "times": times}))


def check_needed(need: str) -> None:
    """Check that the file of the current test names what it uses, so that it is installed before. Our own environment needs no name."""
    file = os.environ["PYTEST_CURRENT_TEST"].removeprefix("tests/").partition("::")[0]
    if need in prepare.NEEDS and need not in tiers.table().needs_of(file):
        pytest.fail(f"{file} uses {need}: name it in [needs] of tests/tiers.toml")


@pytest.fixture
def no_hints(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody puts a hint. They are put in the background, up to a second late, so a test that changes entries by hand goes without."""
    monkeypatch.setattr("objcat.timeline.hints.Hints.put", lambda *_: None)


@pytest.fixture(scope="session")
def _running_servers() -> Iterator[Servers]:
    with Servers() as running:
        yield running


@pytest.fixture(scope="session")
def servers(_running_servers: Servers) -> Callable[[ServerName], ServerHandle]:
    """`servers("versitygw")`: the handle of that server with a bucket that all tests share, started when first asked for.

    `servers("versitygw").fresh_bucket()` is a bucket of one's own.
    """

    def start(name: ServerName) -> ServerHandle:
        check_needed(name)
        return _running_servers.start(name)

    return start


@pytest.fixture
def iam_store(_running_servers: Servers, tmp_path: Path) -> ServerHandle:
    """A store of the test's own that has roles, and holds credentials to their policies."""
    return start_iam_store(_running_servers, tmp_path)


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
    check_needed("spark")
    from pyspark.sql import SparkSession

    os.environ["JAVA_HOME"] = str(toolchain.java_home())
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.ui.retainedJobs": "100000",  # Tests count the jobs of one description.
        "spark.driver.memory": "2g",
        "spark.python.daemon.module": "tests.spark_workers",
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
