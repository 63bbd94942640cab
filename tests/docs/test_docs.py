"""The documentation is run: every Python block of a page in order, as one module, in a fresh directory; and links lead somewhere.

A block of `text` that follows a block of `python` is what that block prints; `...` in it stands for anything. `<!-- no test: reason -->`
before a block leaves it out. A page that names `spark` makes it, and gets the session of the tests by that.
"""

from __future__ import annotations

import contextlib
import doctest
import io
import re
import sys
import types
from pathlib import Path

import pytest

from devkit.pages import FENCE, Block, blocks_of, modules_of, pages

ROOT = Path(__file__).resolve().parents[2]
PAGES = pages()
ARCHITECTURE = ROOT / "docs" / "contributing" / "architecture.md"

_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ +(.+?) *$", re.MULTILINE)


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def anchors_of(text: str) -> set[str]:
    """The anchors of a page's headings, as code hosts make them."""
    prose = FENCE.sub("", text)
    return {re.sub(r"[^\w\- ]", "", heading[1].lower()).replace(" ", "-") for heading in _HEADING.finditer(prose)}


PYTHON_PAGES = [page for page in PAGES if any(block.left_out is None for block in blocks_of(page.read_text()))]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("page", PYTHON_PAGES, ids=name_of)
def test_every_python_block_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    blocks = [block for block in blocks_of(page.read_text()) if block.left_out is None]
    monkeypatch.chdir(tmp_path)
    module = types.ModuleType("documentation")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    if any(re.search(r"\bspark\b", block.source) for block in blocks):
        # What `getOrCreate` of the page finds then.
        request.getfixturevalue("spark")
    for block in blocks:
        # Empty lines before the source, so that a failure shows the line of the page.
        code = compile("\n" * (block.line - 1) + block.source, str(page), "exec", dont_inherit=True)
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(code, vars(module))
        if block.output is not None:
            same = doctest.OutputChecker().check_output(block.output, printed.getvalue(), doctest.ELLIPSIS)
            assert same, f"{name_of(page)}, line {block.line}, printed:\n{printed.getvalue()}"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_relative_link_leads_somewhere(page: Path) -> None:
    for target in _LINK.findall(FENCE.sub("", page.read_text())):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        place = (page.parent / path).resolve() if path else page
        assert place.exists(), f"{name_of(page)} links to {target}, which does not exist"
        assert place.is_relative_to(ROOT), f"{name_of(page)} links to {target}, outside of the project"
        if anchor and place.suffix == ".md":
            assert anchor in anchors_of(place.read_text()), f"{name_of(page)} links to {target}, but there is no such heading"


def linked_pages(page: Path) -> set[Path]:
    """The pages to which a page links."""
    targets = _LINK.findall(FENCE.sub("", page.read_text()))
    return {(page.parent / target.partition("#")[0]).resolve() for target in targets} & set(PAGES)


def test_every_page_can_be_reached() -> None:
    """A reader who starts at the README, the index or the navigation of the site comes to every page by links."""
    navigation = ROOT / "mkdocs.yml"
    named = re.findall(r"[\w/-]+\.md\b", navigation.read_text()) if navigation.exists() else []
    waiting = [ROOT / "README.md", ROOT / "docs" / "index.md", *({ROOT / "docs" / name for name in named} & set(PAGES))]
    reached: set[Path] = set()
    while waiting:
        page = waiting.pop()
        if page not in reached:
            reached.add(page)
            waiting += linked_pages(page)
    assert not [name_of(page) for page in PAGES if page not in reached]


def test_the_architecture_names_every_room() -> None:
    rooms = ARCHITECTURE.read_text().partition("## The tree")[2].partition("\n## ")[0]
    named = []
    for cell in re.findall(r"^\| (`.*?) \|", rooms, re.MULTILINE):
        room, *others = re.findall(r"`([\w/]+)`", cell)
        named += [room, *(f"{room.partition('/')[0]}/{name}" for name in others)]
    modules = [place for package in ("fileio", "objcat") for place in (ROOT / package).glob("[!_]*") if place.suffix in ("", ".py")]
    assert sorted(named) == sorted([*(f"{place.parent.name}/{place.stem}" for place in modules), "pyspark_objcat"])
    for room, entry in re.findall(r"^\| `([\w/]+)` \|.*\| `(\w+\.py)` \|$", rooms, re.MULTILINE):
        assert (ROOT / room / entry).exists(), f"{room} has no module {entry}"


def test_the_architecture_names_modules_and_functions_that_exist() -> None:
    steps = ARCHITECTURE.read_text().partition("\n## A write")[2]
    found = re.findall(r"`([\w/]+\.py)(?: ([\w.]+))?`", steps)
    assert len(found) > 40
    for path, name in found:
        place = next((place for place in (ROOT / "objcat" / path, ROOT / path) if place.exists()), None)
        assert place is not None, f"there is no module {path}"
        source = place.read_text()
        for part in filter(None, name.split(".")):
            assert re.search(rf"^ *(?:def|class) {part}\b", source, re.MULTILINE), f"{path} does not define {name}"


def test_every_decision_is_whole_and_listed() -> None:
    folder = ROOT / "docs" / "decisions"
    pages = [page for page in sorted(folder.glob("*.md")) if page.name != "index.md"]
    listed = re.findall(r"^\| \[(\d{4})\]\((\1-[\w-]+\.md)\) \| (.+) \|$", (folder / "index.md").read_text(), re.MULTILINE)
    titles = {page.name: page.read_text().partition("\n")[0] for page in pages}
    assert {name: f"# {number}. {title}" for number, name, title in listed} == titles
    assert len({page.name[:4] for page in pages}) == len(pages), "two decisions have one number"
    for page in pages:
        text = page.read_text()
        headings = _HEADING.findall(text)[1:]
        assert headings in (["Context", "Decision", "Consequences"], ["Context", "Decision", "Consequences", "Alternatives"]), page.name
        assert re.search(r"^Status: (accepted|replaced by \[\d{4}\]\(.+\))\.$", text, re.MULTILINE), page.name
        for path in re.findall(r"`((?:objcat|fileio|pyspark_objcat|tests)/[\w/]+\.(?:py|java))(?: \w+)?`", text):
            assert (ROOT / path).exists(), f"{page.name} names {path}, which does not exist"


def test_a_block_that_fails_or_prints_something_else_is_found() -> None:
    text = "```python\nprint(1)\n```\n\n```text\n2\n```\n\n<!-- no test: needs a bucket -->\n```python\nraise\n```\n"
    assert list(blocks_of(text)) == [Block(2, "print(1)\n", "2\n", None), Block(11, "raise\n", None, "needs a bucket")]
    assert not doctest.OutputChecker().check_output("2\n", "1\n", doctest.ELLIPSIS)


def test_the_module_of_a_page_has_its_lines() -> None:
    text = "# A\n\n```python\na = 1\n```\n\n<!-- no test: a module of its own -->\n```python\nb = 2\n```\n\n```python\nc = a\n```\n"
    assert list(modules_of(text)) == ["\n" * 8 + "b = 2\n", "\n" * 3 + "a = 1\n" + "\n" * 8 + "c = a\n"]
