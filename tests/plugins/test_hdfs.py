"""The example `hdfs:` on a real HDFS: the conformance suite of stores, lost answers, and a table with several writers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from devkit.hdfs import HdfsServer
from devkit.prepare import hdfs_client
from tests.plugins.examples import install, run_tests

SHORT = (
    "test_put or race_of_puts or race_of_uploads or list_with or metadata "
    "or lost_answer or late_update or dead_writer or two_writers or killed"
)
"""Tests of the example that show what is new in HDFS. The others ask what every store is asked, by thousands of calls."""


@dataclass(frozen=True)
class Hdfs:
    """A server, and the folders with what the tests of the example import."""

    port: int
    sites: Sequence[Path]


@pytest.fixture(scope="module")
def hdfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hdfs]:
    site = install("objcat-hdfs", tmp_path_factory.mktemp("hdfs"))
    with HdfsServer() as server:
        yield Hdfs(server.port, [site, hdfs_client()])


def test_conditional_writes_and_a_table(hdfs: Hdfs, tmp_path: Path) -> None:
    assert run_tests("objcat-hdfs", *hdfs.sites, cwd=tmp_path, env={"HDFS_PORT": str(hdfs.port)}, only=SHORT) > 20


@pytest.mark.timeout(1800)  # thousands of calls, on a machine that may be busy
def test_everything_that_a_store_must_do(hdfs: Hdfs, tmp_path: Path) -> None:
    assert run_tests("objcat-hdfs", *hdfs.sites, cwd=tmp_path, env={"HDFS_PORT": str(hdfs.port)}) > 150
