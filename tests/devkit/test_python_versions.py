"""The versions of Python are the same wherever they are named: `pyproject.toml`, `./dev` and the pages."""

from __future__ import annotations

import re
import tomllib

import pytest

from devkit.paths import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LINE = "Programming Language :: Python :: 3."
MINORS = [int(line.removeprefix(LINE)) for line in PROJECT["classifiers"] if line.startswith(LINE)]


def test_the_bounds_are_those_of_the_classifiers() -> None:
    assert list(range(MINORS[0], MINORS[-1] + 1)) == MINORS
    assert PROJECT["requires-python"] == f">=3.{MINORS[0]},<3.{MINORS[-1] + 1}"


def test_dev_takes_the_same_versions() -> None:
    script = (ROOT / "dev").read_text()
    assert f"(3, {MINORS[0]}) <= sys.version_info[:2] <= (3, {MINORS[-1]})" in script
    assert re.findall(r"python3\.(\d+)", script) == [str(minor) for minor in MINORS]


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "docs/tutorial.md", "docs/contributing/development.md"])
def test_a_page_names_the_same_versions(page: str) -> None:
    *first, last = (f"3.{minor}" for minor in MINORS)
    assert f"Python {', '.join(first)} or {last}" in (ROOT / page).read_text()
