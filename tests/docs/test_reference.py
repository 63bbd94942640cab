"""The pages of `docs/reference/` that come from code are what the code says."""

from __future__ import annotations

import pytest

from devkit.reference import FOLDER, pages
from objcat.metadata import properties
from objcat.metadata.maintenance_policy import policy_of

PAGES = pages()


@pytest.mark.parametrize("name", PAGES)
def test_a_generated_page_is_what_the_code_says(name: str) -> None:
    assert (FOLDER / name).read_text() == PAGES[name], "run ./dev docs reference"


@pytest.mark.parametrize("name", [*properties.NUMBERS, *properties.WORDS])
def test_every_property_is_described(name: str) -> None:
    assert f"\n## {name}\n" in PAGES["properties.md"], f"the constant of {name} has no docstring"


def test_the_defaults_of_the_page_are_those_that_hold() -> None:
    assert policy_of(properties.DEFAULTS) == policy_of({})
    assert {*properties.DEFAULTS, *properties.SINCE} <= {*properties.NUMBERS, *properties.WORDS}
