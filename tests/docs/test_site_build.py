"""MkDocs builds the site of the pages without a warning: every link leads somewhere, and every page is in the menu."""

from __future__ import annotations

from pathlib import Path

import pytest

from devkit import site


@pytest.mark.timeout(600)
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    assert site.build(tmp_path / "site") == 0
    python = (tmp_path / "site" / "reference" / "python.html").read_text()
    assert 'id="objcat.Table"' in python
    assert 'id="objcat.Table.upsert"' in python
    assert 'id="objcat.Table.scan"' in python, "members of a base class are shown with the class"
