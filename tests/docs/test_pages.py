"""The prose of the pages: their length, their sentences and their words; and that the checker finds what it is for."""

from __future__ import annotations

import pytest

from devkit.pages import pages
from devkit.paths import ROOT
from devkit.prose import Limits, violations, words_of

LIMITS = Limits.load()
NAMES = [path.relative_to(ROOT).as_posix() for path in pages()]


@pytest.mark.parametrize("page", NAMES)
def test_a_page_keeps_the_rules_of_prose(page: str) -> None:
    found = violations(page, (ROOT / page).read_text(), LIMITS)
    assert not found, "\n".join(map(str, found))


def found(text: str, *, page: str = "docs/tutorial.md", words: int = 1000) -> list[str]:
    """What the checker says of a page with this text below its title, as `line: what`."""
    limits = Limits({page: words})
    return [str(violation).removeprefix(f"{page}:") for violation in violations(page, f"# Title\n\n{text}", limits)]


LONG = " ".join(["Word", *["word"] * 35])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Good. Better.", "3: 2 sentences on one line; the second begins: Better."),
        ("Is it (good)? `It` is.", "3: 2 sentences on one line; the second begins: `code` is."),
        ("**Bold.** More follows.", "3: 2 sentences on one line; the second begins: More follows."),
        ("A sentence that\ngoes on.", "3: the sentence goes on in the next line: A sentence that"),
        (f"Good.\n{LONG}.", "4: 36 words in a sentence, 35 at most: Word word"),
        (f"- Good. {LONG}.", "3: 36 words in a sentence, 35 at most: Word word"),
        (f"- {' '.join(['word'] * 20)}\n  {' '.join(['word'] * 16)}.", "3: 36 words in a sentence, 35 at most"),
        (f"1. Good.\n2. {LONG}.", "4: 36 words in a sentence"),
        (f"> {LONG}.", "3: 36 words in a sentence"),
        (f"!!! note\n    {LONG}.", "4: 36 words in a sentence"),
        (f"!!! note\n    Good.\n\n    {LONG}.", "6: 36 words in a sentence"),
        (f"```python\nx\n```\n{LONG}.", "6: 36 words in a sentence"),
        ("Its Homes are many.", "3: refused: 'Homes'; say file group"),
        ("## The home\n", "3: refused: 'home'"),
        ("| a | Folded |\n|---|---|\n", "3: refused: 'Folded'; say replay"),
        ("Read [whoever](x.md) writes.", "3: refused: 'whoever'"),
        ("It cannot stand above the log.", "3: refused: 'stand above'"),
        ("- The rows of now.", "3: refused: 'of now'"),
        ("A key lives in one file.", "3: refused: 'key lives in'"),
        ("The former partitioning stays.", "3: refused: 'former partitioning'"),
        ("It begins anew, or once more.", "3: refused: 'anew'"),
    ],
)
def test_a_violation_is_found_with_its_line(text: str, expected: str) -> None:
    assert any(line.startswith(expected) for line in found(text)), found(text)


@pytest.mark.parametrize(
    "text",
    [
        "One sentence.\nAnother one.",
        "Some values, e.g. `None`, are special.\nVersion 3.11 works.",
        "Do this:\n\n- Good. Better. Best.\n- One item\n  on two lines.\n",
        f"```text\n{LONG} home. Whoever. It.\n```\n",
        f"1. Do it:\n\n   ```python\n   {LONG} home\n   ```\n\n2. Done.\n",
        f"| {LONG}. Another. | b |\n|---|---|\n",
        f"## {LONG}",
        "Call `compact(homes=...)`, `fold()` and ``a `home` b``.",
        f"See [the page](https://home.example/whoever/{'-'.join(['word'] * 40)}).",
        "A tenfold gain for a home-made homepage.",
        f"<!-- no test: {LONG} home -->\nGood.",
        f"Like this:\n\n    {LONG} home\n\n    It. And that\n    goes on\n",
        "[a]: https://home.example/home\n",
    ],
)
def test_what_is_no_violation(text: str) -> None:
    assert found(text) == []


def test_the_glossary_of_the_specification_may_say_refused_words() -> None:
    text = "## Glossary\n\n### Old\n\nA home is a file group.\n\n## Next\n\nA home.\n"
    assert [line.partition(":")[0] for line in found(text, page="docs/spec/protocol.md")] == ["11"]
    assert [line.partition(":")[0] for line in found(text)] == ["7", "11"]


def test_a_page_that_is_too_long_or_has_no_limit_or_no_title_is_found() -> None:
    assert found("Two words.", words=2) == ["1: 3 words, 2 at most (fences do not count)"]
    assert found("Two words.", words=3) == []
    limits = Limits({"docs/how-to/*.md": 3, "docs/how-to/long.md": 9}, generated=("docs/reference/cli.md",))
    assert "no word limit" in str(violations("docs/new.md", "# A\n", limits)[0])
    assert len(violations("docs/how-to/short.md", "# A\n\nB c d.\n", limits)) == 1
    assert violations("docs/how-to/long.md", "# A\n\nB c d.\n", limits) == []
    assert violations("docs/reference/cli.md", "# A\n\nB c d.\n", limits) == []
    assert "begins with" in str(violations("docs/how-to/a.md", "A b.\n", limits)[0])


def test_words_are_those_outside_of_code() -> None:
    assert words_of("# A b\n\n```python\nx = 1\n```\n\nC `d e f` [g](h.md) - i.\n\n| j | k |\n|---|---|\n") == 8


def test_each_rule_is_seen_in_one_bad_line() -> None:
    assert Limits.load().words_max("docs/how-to/anything.md") == 700
    sample = "# T\n\nOf a copy-on-write table, whoever writes finds its home beaten. Then it folds.\n"
    assert len(violations("docs/tutorial.md", sample, LIMITS)) == 5
