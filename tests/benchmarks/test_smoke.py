"""`./dev bench smoke`: it runs, and an answer that is wrong makes it fail."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks import smoke
from benchmarks.peers import SIDES, Peer

OWN = SIDES["objcat-local"]
DELTALAKE = replace(SIDES["deltalake"], lock=None)
"""deltalake is in the environment of the tests too."""
FORGETFUL = Peer("deltalake", "local", "peer", "tests.benchmarks.forgetful")
UPSERT = ["write", "--only", "merge-on-read, without Spark"]


@pytest.mark.slow
def test_every_work_of_every_suite_is_right(capsys):
    """The whole command, with pyiceberg: 90 s."""
    assert smoke.main([]) == 0, capsys.readouterr().out


def test_works_of_tables_are_right(capsys):
    assert smoke.main(UPSERT, [OWN, DELTALAKE]) == 0
    assert "write: right" in capsys.readouterr().out


def test_a_side_that_forgets_a_row_makes_it_fail(capsys):
    assert smoke.main(UPSERT, [OWN, FORGETFUL]) == 1
    told = capsys.readouterr().out
    assert "write: WRONG" in told
    assert "upsert 1 %: deltalake has" in told
    assert "instead of" in told


def test_a_work_that_objcat_does_not_do_makes_it_fail(capsys):
    assert smoke.main(UPSERT, [DELTALAKE]) == 1
    assert "bulk load: objcat-local did not do it: it was not asked" in capsys.readouterr().out


def test_nothing_checked_is_not_right(capsys):
    assert smoke.main(["write", "--only", "no such work"], [OWN]) == 1
    assert "nothing was checked" in capsys.readouterr().out


def test_the_other_suites_are_right(tmp_path):
    for suite in ("metadata", "fileio"):
        (tmp_path / suite).mkdir()
        assert smoke.OTHERS[suite](tmp_path / suite / "place") == []
