"""The Python blocks of the documentation: which ones run as tests, and one module per page for the type checker."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from devkit.paths import ROOT

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LEFT_OUT = re.compile(r"<!-- no test: (.+?) -->\s*\Z")
_BY_ITSELF = "a module of its own"
"""The beginning of the reason of a block that does not continue the other blocks of its page."""


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced Python block. `line`: of its first statement. `output`: what it must print; None when nothing is specified."""

    line: int
    source: str
    output: str | None
    left_out: str | None


def pages() -> list[Path]:
    """The pages in the project's root and in `docs/`."""
    return [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]


def blocks_of(text: str) -> Iterator[Block]:
    """The Python blocks of a page, in order."""
    fences = list(FENCE.finditer(text))
    for number, fence in enumerate(fences):
        if fence[1] != "python":
            continue
        following = fences[number + 1] if number + 1 < len(fences) else None
        answers = following is not None and following[1] == "text" and not text[fence.end() : following.start()].strip()
        reason = _LEFT_OUT.search(text[: fence.start()])
        yield Block(
            line=text.count("\n", 0, fence.start(2)) + 1,
            source=fence[2],
            output=following[2] if answers and following else None,
            left_out=reason and reason[1],
        )


def modules_of(text: str) -> Iterator[str]:
    """The Python of a page as modules with the line numbers of the page: one for all blocks, and one for each separate block."""
    together: list[Block] = []
    for block in blocks_of(text):
        if block.left_out is not None and block.left_out.startswith(_BY_ITSELF):
            yield _module([block])
        else:
            together.append(block)
    if together:
        yield _module(together)


def _module(blocks: list[Block]) -> str:
    lines: list[str] = []
    for block in blocks:
        lines += [""] * (block.line - 1 - len(lines)) + block.source.splitlines()
    return "\n".join(lines) + "\n"


def write_modules(folder: Path) -> dict[str, str]:
    """Write the modules of all pages to a folder. Returns the page of each file, relative to the project's root."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.py"):
        old.unlink()
    written = {}
    for page in pages():
        for number, module in enumerate(modules_of(page.read_text())):
            name = re.sub(r"\W", "_", str(page.relative_to(ROOT).with_suffix(""))).lower()
            file = folder / f"page_{name}_{number}.py"
            file.write_text(module)
            written[str(file)] = str(page.relative_to(ROOT))
    return written
