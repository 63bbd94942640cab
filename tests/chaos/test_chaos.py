"""Processes write, read and roll back while they are killed and the store's answers get lost; an auditor compares everything at the end.

`CHAOS_SEED=...` chooses again what the seed that a run prints has chosen. The moments of a run are its own, so a replay is a similar run.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from devkit.handle import ServerHandle
from objcat.common.validation import TableType
from objcat.inspection.doctor import examine
from tests.chaos.auditor import audit
from tests.chaos.journal import read_journals
from tests.chaos.operations import open_table
from tests.chaos.supervisor import Plan, run_chaos, where
from tests.chaos.worker import TABLE

SHORT = Plan(local=3, commits=30, kills=6, lost=12, unknown=1, fenced=1, seconds_max=400)
LONG = Plan(local=4, spark=2, commits=1000, kills=100, lost=400, unknown=20, fenced=20, spark_commits=30, seconds_max=900, between_kills=30)


def run(store: ServerHandle | Path, plan: Plan, directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seed = int(os.environ.get("CHAOS_SEED") or secrets.randbits(32))
    name = "file" if isinstance(store, Path) else store.name
    told = f"chaos on {name}, {plan.kind}, CHAOS_SEED={seed}"
    print(told)
    happened = run_chaos(store, plan, seed=seed, directory=directory)
    attempts = read_journals(directory)
    table, objects = open_table(*where(store), TABLE)
    verdict = audit(table, objects, attempts)
    report = examine(table._context.timeline, deep=True)
    with capsys.disabled():
        print(f"\n{told}: {happened}; {dict(sorted(verdict.counts.items()))}")
    assert not plan.together or any(entry.also for entry in table.inspect.history()), f"{told}: nobody shared a slot"
    assert verdict.problems == [], "\n".join([told, *verdict.problems])
    assert report.healthy, f"{told}: {report.findings}"
    assert happened.enough(plan), f"too little happened for the run to mean anything: {happened} of {plan}"


def check(
    store: str, kind: TableType, plan: Plan, servers: Callable[[str], ServerHandle], directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if store == "file":
        # No answer gets lost where there is no HTTP.
        run(directory / "lake", replace(plan, kind=kind, lost=0, unknown=0), directory / "run", capsys)
    else:
        run(servers(store).fresh_bucket(), replace(plan, kind=kind), directory / "run", capsys)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("store", "kind"),
    [
        ("file", "copy_on_write"),
        ("versitygw", "merge_on_read"),
        pytest.param("fake-gcs-server", "copy_on_write", marks=pytest.mark.tier("all")),
        pytest.param("azurite", "merge_on_read", marks=pytest.mark.tier("all")),
        pytest.param("seaweedfs", "merge_on_read", marks=pytest.mark.tier("all")),
        pytest.param("moto", "copy_on_write", marks=pytest.mark.tier("all")),
    ],
)
def test_chaos(
    servers: Callable[[str], ServerHandle], store: str, kind: TableType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    check(store, kind, SHORT, servers, tmp_path, capsys)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("store", ["file", pytest.param("versitygw", marks=pytest.mark.tier("all"))])
def test_chaos_of_writers_that_commit_together(
    servers: Callable[[str], ServerHandle], store: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    check(store, "merge_on_read", replace(SHORT, local=6, commits=60, together=True), servers, tmp_path, capsys)


@pytest.mark.tier("all")
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("kind", ["merge_on_read", "copy_on_write"])
@pytest.mark.parametrize("store", ["file", "versitygw", "seaweedfs", "moto", "fake-gcs-server", "azurite"])
def test_long_chaos(
    servers: Callable[[str], ServerHandle], store: str, kind: TableType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    check(store, kind, LONG, servers, tmp_path, capsys)
