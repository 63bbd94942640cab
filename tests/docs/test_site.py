"""The site: its menu names the pages that there are, and its hooks make them read as on a code host."""

from __future__ import annotations

import importlib
from types import SimpleNamespace
from typing import Any

import pytest

from devkit import site
from devkit.paths import ROOT
from devkit.site_hooks import ROOT_PAGES, complete_menu, named_pages, on_page_markdown

YAML: Any = importlib.import_module("yaml")


def test_the_menu_names_every_page() -> None:
    nav = YAML.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]
    complete_menu(nav)
    menu = list(named_pages(nav))
    docs = ROOT / "docs"
    pages = {page.relative_to(docs).as_posix() for page in docs.rglob("*.md")}
    pages |= {there for here, there in ROOT_PAGES.items() if (ROOT / here).exists()}
    assert sorted(pages - set(menu)) == [], "mkdocs.yml does not name these"
    assert len(menu) == len(set(menu))
    assert sorted(set(menu) - pages) == [], "mkdocs.yml names these, which do not exist"


def test_a_folder_in_the_tree_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert site.build(ROOT / "site") == 2
    assert "outside" in capsys.readouterr().err


def markdown(text: str, place: str = "how-to/a.md") -> str:
    return on_page_markdown(text, page=SimpleNamespace(file=SimpleNamespace(src_uri=place)))


@pytest.mark.parametrize(
    ("place", "link", "expected"),
    [
        ("how-to/a.md", "[b](../concepts/b.md#c)", "[b](../concepts/b.md#c)"),
        ("how-to/a.md", "[b](#c)", "[b](#c)"),
        ("how-to/a.md", "[b](https://example.org/b.md)", "[b](https://example.org/b.md)"),
        ("how-to/a.md", "[`b`](../../objcat/b.py)", "`b`"),
        ("how-to/a.md", "[b](../../README.md)", "[b](../index.md)"),
        ("index.md", "[b](../CONTRIBUTING.md#c)", "[b](contributing/index.md#c)"),
        ("contributing/index.md", "[b](docs/contributing/b.md)", "[b](b.md)"),
        ("changelog.md", "[b](docs/changes.md)", "[b](changes.md)"),
    ],
)
def test_links_lead_to_where_pages_are_in_the_site(place: str, link: str, expected: str) -> None:
    assert markdown(f"See {link}.\n", place) == f"See {expected}.\n"
    assert markdown(f"```text\n{link}\n```\n", place) == f"```text\n{link}\n```\n"


def test_a_list_after_a_line_of_text_is_a_list() -> None:
    assert markdown("Do this:\n- a\n- b\n  c\n- d\n") == "Do this:\n\n- a\n- b\n  c\n- d\n"
    assert markdown("1. a\n2. b\n") == "1. a\n2. b\n"
