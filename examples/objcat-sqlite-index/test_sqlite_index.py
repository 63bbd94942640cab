"""The index under the conformance suite."""

from __future__ import annotations

from pathlib import Path

import pytest

from objcat.testing.indexes import *  # noqa: F403 - the tests of the suite
from objcat.testing.indexes import IndexSubject


@pytest.fixture
def subject(tmp_path: Path) -> IndexSubject:
    return IndexSubject("sqlite", options={"path": str(tmp_path / "keys.db")})
