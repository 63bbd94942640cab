"""Docstrings and comments use the words that pages use: those that `devkit/prose.py` refuses stand in none of them."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

from devkit.paths import ROOT
from devkit.prose import REFUSED

SOURCES = sorted(path for package in ("fileio", "objcat", "pyspark_objcat") for path in (ROOT / package).rglob("*.py"))
_REFUSED = re.compile(rf"\b(?:{'|'.join(REFUSED)})\b", re.IGNORECASE)
_CODE = re.compile(r"`[^`]*`|case[- ]fold\w*")
"""Code, and the one sense in which a word is right: Unicode's case folding."""


def prose_of(source: str) -> Iterator[tuple[int, str]]:
    """The docstrings and comments of a module, those below constants too, with their lines."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, node.value.value
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def refused_in(source: str) -> list[tuple[int, str]]:
    return sorted((line, found[0]) for line, text in prose_of(source) for found in _REFUSED.finditer(_CODE.sub("", text)))


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_no_refused_word(path: Path) -> None:
    assert refused_in(path.read_text()) == []


@pytest.mark.parametrize(
    "source", ['"""A home."""\n', 'X = 1\n"""Of now."""\n', "x = 1  # written anew\n", 'def f():\n    """Whoever asks."""\n']
)
def test_a_refused_word_is_found(source: str) -> None:
    assert len(refused_in(source)) == 1


def test_code_is_no_prose() -> None:
    assert refused_in('home = "anew"\n"""Calls `fold(home)`."""\n') == []
