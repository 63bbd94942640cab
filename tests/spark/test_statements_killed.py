"""Drivers that die in the middle of a statement of `spark.sql`: the lake has all of it or nothing, and the next statement works."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import objcat
from objcat.common.validation import TableType
from objcat.inspection.doctor import examine
from tests.spark.killed_statements import STATEMENTS, TABLE, state_of, states
from tests.spark.test_driver_killed import POINTS, REQUESTS, run_driver

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("p", pa.int64(), nullable=False), pa.field("v", pa.int64())])
CHIEF = (("merge", "landed"), ("ctas", "slot"))
"""What dies without `--all`."""
LOST = ("Py4JNetworkError",)
"""What PySpark says when its JVM ends under `spark.sql`, a call into that JVM. Nothing of ours comes between."""


@pytest.mark.timeout(900)
def test_a_statement_is_whole_or_not_there(tmp_path: Path) -> None:
    check_all(tmp_path, [{"kill": kill, "point": point} for kill, point in CHIEF])


@pytest.mark.tier("all")
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("kind", ["merge_on_read", "copy_on_write"])
def test_drivers_die_in_every_statement(tmp_path: Path, point: str, kind: TableType) -> None:
    check_all(tmp_path, [{"kill": name, "point": point} for name in STATEMENTS], kind)


@pytest.mark.tier("all")
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("request_", REQUESTS)
def test_drivers_die_after_requests_of_their_own(tmp_path: Path, request_: int) -> None:
    check_all(tmp_path, [{"kill": name, "point": "request", "request": request_} for name in STATEMENTS])


def check_all(directory: Path, plans: list[dict[str, Any]], kind: TableType = "merge_on_read") -> None:
    """Let one driver after another die, and the last one end."""
    lake = objcat.connect(directory / "lake")
    lake.create_table(
        TABLE, SCHEMA, key=["id", "p"], table_type=kind, index=objcat.BucketIndex(2), partition_by=["p"], key_scope="partition"
    )
    died = 0
    for plan in plans:
        died += run_driver("tests.spark.killed_statements", directory, plan, LOST) is not None
        check(directory, plan)
    assert died >= len(plans) / 2, "too few died for this to mean anything"
    assert run_driver("tests.spark.killed_statements", directory, {"kill": None, "point": None}) is None
    check(directory, {})
    assert state_of(objcat.connect(directory / "lake")) == states()[-1]


def check(directory: Path, plan: dict[str, Any]) -> None:
    """The lake is in a state between two statements, and has what was acknowledged."""
    lake = objcat.connect(directory / "lake")
    found = state_of(lake)
    assert found in states(), f"{plan}: a part of a statement"
    done = states().index(found)
    journal = directory / "journal"
    acknowledged = journal.read_text().splitlines() if journal.exists() else []
    assert len(set(acknowledged)) == len(acknowledged), "no statement ran twice"
    assert set(acknowledged) <= set(list(STATEMENTS)[:done]), f"{plan}: what was acknowledged is there"
    if plan.get("kill") is not None and plan["point"] in ("slot", "task"):
        assert plan["kill"] not in acknowledged
    for name in lake.tables():
        report = examine(lake.table(name)._context.timeline, deep=True)
        assert report.healthy, report.findings
