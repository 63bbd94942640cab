"""What MkDocs calls while it builds the site. It makes the pages read there as they do on a code host.

- The root's CONTRIBUTING.md and CHANGELOG.md become pages.
- A link to a file that is no page of the site becomes its text.
- A list may follow a line of text, and its items may be indented by two spaces.
- Headings have the anchors that code hosts give them.
- The menu names every page of the folders in `FOLDERS`: those that mkdocs.yml does not name come last.
"""

from __future__ import annotations

import importlib
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
ROOT_PAGES = {"CONTRIBUTING.md": "contributing/index.md", "CHANGELOG.md": "changelog.md"}
"""Where pages of the project's root are in the site."""
FOLDERS = {"How to": "how-to", "Contributing": "contributing", "Decisions": "decisions"}
"""Sections of the menu that name all pages of a folder."""

_FENCE = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(?<!!)\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\(([^)\s]+)\)")
_LIST = re.compile(r"^(?! *(?:[-*+]|\d+\.) )(?! *$)(?! {2})(?! *[|#>])(.+)\n(?=(?:[-*+]|\d+\.) )", re.MULTILINE)


def on_config(config: Any) -> Any:
    """Complete the menu, and set up the dialect of Markdown."""
    complete_menu(config["nav"])
    config["mdx_configs"].setdefault("toc", {})["slugify"] = importlib.import_module("pymdownx.slugs").slugify(case="lower")
    config["markdown_extensions"].append(_two_spaces())
    return config


def complete_menu(nav: list[Any]) -> None:
    """Add the pages of `FOLDERS` that the menu does not name yet."""
    for entry in nav:
        for title, inside in entry.items() if isinstance(entry, dict) else ():
            if isinstance(inside, list):
                complete_menu(inside)
            if title in FOLDERS:
                there = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs" / FOLDERS[title]).glob("*.md")}
                inside.extend(sorted(there - set(named_pages(inside))))


def named_pages(nav: list[Any]) -> Iterator[str]:
    """The pages of a part of the menu, in order."""
    for entry in nav:
        if isinstance(entry, str):
            yield entry
        else:
            for inside in entry.values():
                yield from named_pages(inside) if isinstance(inside, list) else [inside]


def on_files(files: Any, *, config: Any) -> Any:
    """Add the pages of the root."""
    file = importlib.import_module("mkdocs.structure.files").File
    for name, place in ROOT_PAGES.items():
        if (ROOT / name).exists():
            files.append(file.generated(config, place, abs_src_path=str(ROOT / name)))
    return files


def on_page_markdown(markdown: str, *, page: Any, **_others: Any) -> str:
    """Mend the links that leave the site, and set lists apart from the text before them."""
    place = page.file.src_uri
    source = {there: here for here, there in ROOT_PAGES.items()}.get(place, f"docs/{place}")
    pieces, end = [], 0
    for fence in _FENCE.finditer(markdown):
        pieces += [_prose(markdown[end : fence.start()], source, place), fence[0]]
        end = fence.end()
    return "".join([*pieces, _prose(markdown[end:], source, place)])


def _prose(text: str, source: str, place: str) -> str:
    return _LIST.sub(r"\1\n\n", _LINK.sub(lambda link: _link(link, source, place), text))


def _link(link: re.Match[str], source: str, place: str) -> str:
    """A link as the site has it. source: where the page is in the tree. place: where it is in the site."""
    text, target = link[1], link[2]
    path, hash_sign, anchor = target.partition("#")
    if not path or re.match(r"[a-z]+:", target):
        return link[0]
    file = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
    there = (
        "index.md" if file == "README.md" else ROOT_PAGES.get(file) or (file[len("docs/") :] if re.match(r"docs/.*\.\w+$", file) else None)
    )
    if there is None:
        return text
    return f"[{text}]({posixpath.relpath(there, posixpath.dirname(place) or '.')}{hash_sign}{anchor})"


def _two_spaces() -> Any:
    """An extension of Markdown: two spaces are one step of indentation, as on code hosts."""

    def extend(_self: object, markdown: Any) -> None:
        markdown.tab_length = 2

    return type("TwoSpaces", (importlib.import_module("markdown").Extension,), {"extendMarkdown": extend})()
