"""`./dev run python -m devkit.prose [PAGE...]`: prints where a page breaks the rules of prose, line by line.

The rules: the word limit of the page (`tests/docs/pages.toml`), one sentence per line, at most 35 words per sentence, no refused words,
and a title at the beginning. Code is not prose: fences, code spans and the targets of links are left out. Tables and headings count as
words and are searched for refused words. They need no sentences.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from devkit.pages import pages
from devkit.paths import ROOT

RULES = ROOT / "tests" / "docs" / "pages.toml"
SENTENCE_WORDS_MAX = 35

REFUSED: Mapping[str, str] = {
    r"homes?": "say file group, or file group id",
    r"beaten": "say conflicted, or lost the slot",
    r"forestall(?:s|ed|ing)?": "say conflicted, or lost the slot",
    r"(?:stands?|stood|standing) above": "say commits after, or conflicts with",
    r"(?:un)?fold(?:s|ed|ing)?": "say replay",
    r"keyless": "say without a key",
    r"anew": "say again",
    r"once more": "say again",
    r"upkeep": "say maintenance",
    r"keys? (?:lives?|lived|living) in": "say is stored in",
    r"former partition(?:ing|s|ings)?": "say previous partition spec",
    r"whoever": "say the caller, the writer or the next reader",
    r"of now": "say current",
    r"of before": "say previous",
    r"br(?:ought|ing|ings|inging) to the driver|brought": "say collected to the driver",
}
"""Words that pages do not use, as regular expressions of whole words, with what to write instead."""

_FENCE = re.compile(r"\s*(```+|~~~+)")
_SPAN = re.compile(r"(`+)(?!`).+?(?<!`)\1(?!`)")
_LINK = re.compile(r"!?\[((?:[^\[\]]|\[[^\[\]]*\])*)\](?:\([^()\s]*(?:\([^()]*\)[^()\s]*)*(?:\s+\"[^\"]*\")?\)|\[[^\]]*\])")
_TARGET = re.compile(r"^\s*\[[^\]]+\]: +\S+.*$")
_TAG = re.compile(r"<!--.*?-->|</?[A-Za-z][^<>]*>|<https?://[^>]*>|https?://\S+")
_ITEM = re.compile(r"^(\s*)(?:[-*+]|\d+[.)])\s+(?:\[[ xX]\]\s+)?")
_ADMONITION = re.compile(r"^\s*(?:!!!|\?\?\?\+?|===)\s")
_DIRECTIVE = re.compile(r"^\s*:::\s")
_ABBREVIATION = re.compile(r"\b(?:e\.g|i\.e|etc|vs|cf|no|St|approx|incl)\.$", re.IGNORECASE)
_END = re.compile(r"[.!?][)\]\"'*_”’]*(?=\s+[\"'(\[*_“‘]*[A-Z0-9`])")
_FINISHED = re.compile(r"[.!?:;…][)\]\"'*_”’]*$")
_WORD = re.compile(r"\w")
_CODE = "`code`"
"""The replacement of a code span: one word without anything to search."""
_GLOSSARY = ("glossary", "words")


@dataclass(frozen=True, slots=True)
class Violation:
    """A rule that a line breaks."""

    page: str
    line: int
    what: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}: {self.what}"


@dataclass(frozen=True, slots=True)
class Limits:
    """The table of pages. `words`: by page or pattern of pages. `generated`: pages without a word limit."""

    words: Mapping[str, int]
    generated: tuple[str, ...] = ()

    @classmethod
    def load(cls, path: Path = RULES) -> Limits:
        """Read the table from its file."""
        table = tomllib.loads(path.read_text())
        return cls(table["words"], tuple(table.get("generated", ())))

    def words_max(self, page: str) -> int | None:
        """The limit of a page: its own entry, or that of the first pattern that matches. Raises LookupError without either."""
        if any(fnmatchcase(page, pattern) for pattern in self.generated):
            return None
        if page in self.words:
            return self.words[page]
        for pattern, limit in self.words.items():
            if fnmatchcase(page, pattern):
                return limit
        raise LookupError(page)


@dataclass(frozen=True, slots=True)
class _Line:
    """A line outside of fences. text: with code spans and targets replaced. kind: prose, item, more (of an item), heading, table, blank."""

    number: int
    kind: str
    text: str


def words_of(text: str) -> int:
    """The number of words of a page: of its prose, lists, tables and headings. A code span is one word; a fence has none."""
    return sum(_count(line.text) for line in _lines(text))


def violations(page: str, text: str, limits: Limits) -> list[Violation]:
    """The rules that a page breaks, in the order of its lines. `page`: its path relative to the project's root."""
    lines = list(_lines(text))
    found = [*_title(page, lines), *_length(page, text, limits)]
    found += [Violation(page, number, what) for number, what in (*_long_or_shared(lines), *_refused(page, lines))]
    return sorted(found, key=lambda violation: violation.line)


def _title(page: str, lines: Sequence[_Line]) -> Iterator[Violation]:
    first = next((line for line in lines if line.kind != "blank"), None)
    if first is None or first.kind != "heading" or not first.text.startswith("# "):
        yield Violation(page, first.number if first else 1, "a page begins with `# Title`")


def _length(page: str, text: str, limits: Limits) -> Iterator[Violation]:
    try:
        limit = limits.words_max(page)
    except LookupError:
        yield Violation(page, 1, f"the page has no word limit: add it to {RULES.relative_to(ROOT)}")
        return
    words = words_of(text)
    if limit is not None and words > limit:
        yield Violation(page, 1, f"{words} words, {limit} at most (fences do not count)")


def _long_or_shared(lines: Sequence[_Line]) -> Iterator[tuple[int, str]]:
    """Sentences that are too long, lines with two sentences, and sentences on two lines."""
    for block in _blocks(lines):
        if block[0].kind == "item":
            parts = sentences(" ".join(line.text.strip() for line in block))
            yield from ((block[0].number, what) for part in parts if (what := _too_long(part)))
            continue
        for place, line in enumerate(block):
            parts = sentences(line.text.strip())
            if len(parts) > 1:
                yield line.number, f"{len(parts)} sentences on one line; the second begins: {_start(parts[1])}"
            if place + 1 < len(block) and not _FINISHED.search(line.text.rstrip()):
                yield line.number, f"the sentence goes on in the next line: {_start(line.text)}"
            yield from ((line.number, what) for part in parts if (what := _too_long(part)))


def _refused(page: str, lines: Sequence[_Line]) -> Iterator[tuple[int, str]]:
    in_glossary, level = False, 0
    for line in lines:
        if line.kind == "heading":
            depth = len(line.text) - len(line.text.lstrip("#"))
            if not in_glossary or depth <= level:
                title = line.text.lstrip("# ").lower()
                in_glossary, level = page.startswith("docs/spec/") and title.startswith(_GLOSSARY), depth
        if in_glossary:
            continue
        for word, instead in REFUSED.items():
            for match in re.finditer(rf"(?<![\w-])(?:{word})(?![\w-])", line.text, re.IGNORECASE):
                yield line.number, f"refused: {match[0]!r}; {instead}"


def _lines(text: str) -> Iterator[_Line]:
    fence: str | None = None
    in_comment, in_item, inside, before = False, False, False, "blank"
    rows = text.split("\n")
    start = rows.index("---", 1) + 1 if rows[0] == "---" and "---" in rows[1:] else 0
    for number, row in enumerate(rows[start:], start + 1):
        if fence is not None:
            if row.strip().startswith(fence) and not row.strip().strip(fence[0]):
                fence = None
            continue
        if (opened := _FENCE.match(row)) and not in_comment:
            fence = opened[1]
            yield _Line(number, "blank", "")
            continue
        plain = row
        if in_comment:
            _, closed, plain = row.partition("-->")
            in_comment = not closed
            if in_comment:
                continue
        plain = _plain(plain)
        if "<!--" in plain:
            plain, in_comment = plain.partition("<!--")[0], True
        kind = _kind(plain, in_item=in_item)
        if kind == "prose" and row.startswith("    ") and not inside and before in ("blank", "code"):
            kind = "code"
        in_item = kind in ("item", "more") or (kind == "blank" and in_item)
        inside = bool(_ADMONITION.match(plain)) or (inside and (kind == "blank" or row.startswith("  ")))
        before = kind
        if kind == "code":
            yield _Line(number, "blank", "")
            continue
        yield _Line(number, kind, re.sub(r"^(\s*>)+ ?", "", plain) if kind in ("prose", "more") else plain)


def _kind(plain: str, *, in_item: bool) -> str:
    stripped = plain.strip()
    if not stripped or _DIRECTIVE.match(plain) or re.fullmatch(r"[-*_=\s]{3,}", stripped):
        return "blank"
    if re.match(r"#{1,6} ", plain):
        return "heading"
    if stripped.startswith("|"):
        return "table"
    if _ADMONITION.match(plain):
        return "heading"
    if _ITEM.match(plain):
        return "item"
    return "more" if in_item and plain.startswith("  ") else "prose"


def _plain(row: str) -> str:
    """A line with each code span as one word, and links as their text."""
    if _TARGET.match(row):
        return ""
    plain = _SPAN.sub(_CODE, row)
    while (shorter := _LINK.sub(r"\1", plain)) != plain:
        plain = shorter
    return _TAG.sub("", plain).rstrip()


def _blocks(lines: Sequence[_Line]) -> Iterator[list[_Line]]:
    """Paragraphs, and items of lists with their continuation lines."""
    block: list[_Line] = []
    for line in lines:
        goes_on = bool(block) and line.number == block[-1].number + 1
        if block and not (goes_on and (line.kind == "more" if block[0].kind == "item" else line.kind == block[0].kind)):
            yield block
            block = []
        if line.kind in ("prose", "more", "item"):
            block.append(line)
    if block:
        yield block


def sentences(text: str) -> list[str]:
    """The sentences of a text on one line."""
    found, start = [], 0
    text = _ITEM.sub("", text)
    for end in _END.finditer(text):
        if _ABBREVIATION.search(text[: end.start() + 1]):
            continue
        found.append(text[start : end.end()].strip())
        start = end.end()
    return [*found, *([rest] if (rest := text[start:].strip()) else [])]


def _too_long(sentence: str) -> str | None:
    words = _count(sentence)
    return f"{words} words in a sentence, {SENTENCE_WORDS_MAX} at most: {_start(sentence)}" if words > SENTENCE_WORDS_MAX else None


def _count(text: str) -> int:
    return sum(1 for word in text.split() if _WORD.search(word))


def _start(text: str) -> str:
    return text.strip() if len(text.strip()) <= 60 else f"{text.strip()[:57]}..."


def main(arguments: Sequence[str]) -> int:
    """Print the violations of some pages, or of all. Returns 1 when there are any."""
    limits = Limits.load()
    asked = [Path(argument).resolve() for argument in arguments]
    found = 0
    for path in asked or pages():
        page = path.relative_to(ROOT).as_posix()
        text = path.read_text()
        for violation in violations(page, text, limits):
            print(violation)
            found += 1
        if asked:
            print(f"{page}: {words_of(text)} words")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
