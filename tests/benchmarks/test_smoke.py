"""`./dev bench smoke`: it runs, and an answer that is wrong makes it fail."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks import smoke
from benchmarks.figures import Sample, WorkResult
from benchmarks.peers import SIDES

OWN = SIDES["objcat-local"]
FORGETFUL = replace(OWN, module="tests.benchmarks.forgetful")
UPSERT = ["write", "--only", "merge-on-read, without Spark"]


@pytest.mark.tier("all")
def test_every_work_of_every_suite_is_right(capsys):
    """The whole command, with deltalake and pyiceberg: some 90 s. What follows is a side, a table and two upserts of it."""
    assert smoke.main([]) == 0, capsys.readouterr().out


def test_works_of_tables_are_right(capsys):
    assert smoke.main(UPSERT, [OWN]) == 0
    assert "write: right" in capsys.readouterr().out


def test_a_side_that_forgets_a_row_makes_it_fail(capsys):
    assert smoke.main(UPSERT, [FORGETFUL]) == 1
    told = capsys.readouterr().out
    assert "write: WRONG" in told
    assert "upsert 1 %: objcat-local has" in told
    assert "instead of" in told


def test_a_side_that_leaves_a_deleted_row_makes_it_fail(capsys):
    side = replace(OWN, module="tests.benchmarks.undeleting")
    assert smoke.main(["write", "--only", "merge-on-read, memory index"], [side]) == 1
    assert "delete 1 %: objcat-local has" in capsys.readouterr().out


def test_a_side_that_mistakes_a_version_makes_it_fail(capsys):
    side = replace(OWN, module="tests.benchmarks.misdating")
    assert smoke.main(["local", "--only", "history"], [side]) == 1
    told = capsys.readouterr().out
    assert all(
        f"{work}: objcat-local has" in told for work in ("2 commits back", "rows of the last 2 commits", "changes of the last 3 commits")
    )


def test_a_work_that_objcat_does_not_do_is_wrong():
    lacking = WorkResult("orders", "join", "local", samples={"deltalake": [Sample(1, [1.0])]}, lacks={"objcat-local": "it has none"})
    assert smoke.not_done([lacking]) == ["orders, join: objcat-local did not do it: it has none"]
    unasked = WorkResult("orders", "join", "local")
    assert smoke.not_done([unasked]) == ["orders, join: objcat-local did not do it: it was not asked"]
    done = WorkResult("orders", "join", "local", samples={"objcat-local": [Sample(1, [1.0])]})
    assert smoke.not_done([done]) == []


def test_nothing_checked_is_not_right(capsys):
    assert smoke.main(["write", "--only", "no such work"], [OWN]) == 1
    assert "nothing was checked" in capsys.readouterr().out
