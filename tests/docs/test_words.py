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
NAMES_OF_OTHERS = {"case_folded", "_find_spark_home"}
"""Names with a word of others: Unicode's case folding, and PySpark's own function."""
JAVA_SOURCES = sorted((ROOT / "objcat").rglob("*.java"))
_JAVA_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
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


def names_of(source: str) -> Iterator[tuple[int, str]]:
    """The names that a module defines: classes, functions, arguments, variables and attributes, with their lines."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.arg(arg=name):
                yield node.lineno, name
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield node.lineno, name


def refused_names_in(source: str) -> list[tuple[int, str]]:
    apart = {name: re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", name).replace("_", " ") for _, name in names_of(source)}
    return sorted({(line, name) for line, name in names_of(source) if name not in NAMES_OF_OTHERS and _REFUSED.search(apart[name])})


def refused_in_java(source: str) -> list[tuple[int, str]]:
    comments = ((source.count("\n", 0, found.start()) + 1, found[0]) for found in _JAVA_COMMENT.finditer(source))
    return [(line, found[0]) for line, text in comments for found in _REFUSED.finditer(_CODE.sub("", text))]


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_no_refused_word(path: Path) -> None:
    assert refused_in(path.read_text()) == []


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_no_name_has_a_refused_word(path: Path) -> None:
    assert refused_names_in(path.read_text()) == []


@pytest.mark.parametrize("source", ["def is_keyless(): ...", "class NamesFold: ...", "home_of = 1", "def f(upkeep): ...", "x.beaten = 1"])
def test_a_refused_word_is_found_in_a_name(source: str) -> None:
    assert len(refused_names_in(source)) == 1 and refused_names_in("def case_folded(name): folder = name.home()") == []


@pytest.mark.parametrize("path", JAVA_SOURCES, ids=lambda path: path.name)
def test_no_refused_word_in_java(path: Path) -> None:
    assert refused_in_java(path.read_text()) == []


@pytest.mark.parametrize("source", ["int x; // written anew\n", "/** A home. */\n", "/**\n * Whoever asks.\n */\n"])
def test_a_refused_word_is_found_in_java(source: str) -> None:
    assert len(refused_in_java(source)) == 1 and refused_in_java('String home = "anew"; // `home`\n') == []


@pytest.mark.parametrize(
    "source", ['"""A home."""\n', 'X = 1\n"""Of now."""\n', "x = 1  # written anew\n", 'def f():\n    """Whoever asks."""\n']
)
def test_a_refused_word_is_found(source: str) -> None:
    assert len(refused_in(source)) == 1


def test_code_is_no_prose() -> None:
    assert refused_in('home = "anew"\n"""Calls `fold(home)`."""\n') == []
