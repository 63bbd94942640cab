"""The demo of derived tables for real, in small; and that its checks find a refresh that forgets a row."""

from __future__ import annotations

from typing import Any

import pytest

from devkit.demo import main
from objcat.derived import delta
from objcat.derived.source_rows import SIGN


def test_the_demo_holds(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--derived", "--days", "8"]) == 0
    assert "all 4 checks hold" in capsys.readouterr().out


def test_a_forgotten_change_is_found(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    whole = delta._net

    def forgetful(session: Any, changes: Any) -> Any:
        """Without one row that came. Had it forgotten a row that went, the refresh itself would find two rows of one key."""
        found: Any = whole(session, changes)
        return None if found is None else found.sort_by(SIGN).slice(0, max(0, found.num_rows - 1))

    monkeypatch.setattr(delta, "_net", forgetful)
    assert main(["--derived", "--days", "8"]) == 1
    assert "FAIL after each day" in capsys.readouterr().out


def test_the_options_of_other_demos_are_refused() -> None:
    with pytest.raises(SystemExit):
        main(["--derived", "--store", "s3"])
