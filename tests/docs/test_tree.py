"""The tree of modules keeps its shape: packages with one idea, imports that form no circle, names that mean one thing."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[2]
PRODUCT = ("fileio", "objcat", "pyspark_objcat")
PACKAGES = {
    *(
        "adoption",
        "catalog",
        "cli",
        "common",
        "datafile",
        "derived",
        "dml",
        "engine",
        "ingest",
        "inspection",
        "lake",
        "maintenance",
        "metadata",
        "mirror",
        "planning",
        "predicate",
    ),
    *("serve", "sourcefiles", "spark", "sql", "table", "tasks", "testing", "timeline", "write"),
}
RE_EXPORT = {"objcat", "objcat.spark", "fileio", "objcat.cli", "pyspark_objcat"}
"""Packages whose `__init__` is more than a docstring."""
LINES_MAX = 500
FUNCTION_LINES_MAX = 70
DOCUMENTED_MIN = 0.95
SHARED_NAMES = {"Java"}
"""What py4j wants each class that implements an interface of Java to hold."""


def modules() -> dict[str, Path]:
    found = {}
    for package in PRODUCT:
        for path in sorted((ROOT / package).rglob("*.py")):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            found[name.removesuffix(".__init__")] = path
    return found


MODULES = modules()
TREES = {name: ast.parse(path.read_text()) for name, path in MODULES.items()}


def imported(name: str) -> Iterator[str]:
    """The modules of ours that a module imports, those for types alone and those within functions too."""
    for node in ast.walk(TREES[name]):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in MODULES)
        elif isinstance(node, ast.ImportFrom) and node.module in MODULES:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in MODULES else node.module


def test_the_root_has_packages_and_nothing_loose() -> None:
    assert {path.name for path in (ROOT / "objcat").iterdir() if path.is_dir() and path.name != "__pycache__"} == PACKAGES
    assert {path.stem for path in (ROOT / "objcat").glob("*.py")} == {"__init__", "errors", "version"}


def test_names_come_from_the_module_that_defines_them() -> None:
    packages = {name for name, path in MODULES.items() if path.name == "__init__.py"} - RE_EXPORT - {"fileio.testing"}
    assert [(name, used) for name in MODULES for used in imported(name) if used in packages] == []
    for name in packages:
        assert len(TREES[name].body) <= 1, f"{name} has more than a docstring"


def test_no_circle_of_imports() -> None:
    """Of modules, with those that are for types alone."""
    edges = {name: {used for used in imported(name) if used != name} for name in MODULES}
    try:
        ordered = list(TopologicalSorter(edges).static_order())
    except CycleError as error:
        ordered = error.args[1]
    assert sorted(ordered) == sorted(MODULES), "these import one another in turn"


def test_modules_are_short() -> None:
    lines = {path.relative_to(ROOT).as_posix(): len(path.read_text().splitlines()) for path in MODULES.values()}
    assert {name: count for name, count in lines.items() if count > LINES_MAX} == {}


def functions(name: str) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (node for node in ast.walk(TREES[name]) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)))


def test_functions_fit_a_screen() -> None:
    """A docstring is not counted: its lists of arguments are for readers of the page."""
    long = {}
    for name in MODULES:
        for function in functions(name):
            first = function.body[1] if ast.get_docstring(function) and len(function.body) > 1 else function.body[0]
            lines = (function.end_lineno or 0) - first.lineno + 1
            if lines > FUNCTION_LINES_MAX:
                long[f"{name}.{function.name}"] = lines
    assert long == {}


def test_public_names_have_docstrings() -> None:
    documented, bare = 0, []
    for name, tree in TREES.items():
        for where, node in [(name, tree), *public(tree, name)]:
            if ast.get_docstring(node):
                documented += 1
            else:
                bare.append(where)
    assert documented >= DOCUMENTED_MIN * (documented + len(bare)), f"{len(bare)} public names have no docstring: {bare}"


def public(node: ast.Module | ast.ClassDef, inside: str) -> Iterator[tuple[str, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Classes, functions and methods without an underscore, with their names; without overloads, which have no body."""
    for child in node.body:
        if isinstance(child, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and not child.name.startswith("_"):
            if any(ast.unparse(decorator) == "overload" for decorator in child.decorator_list):
                continue
            yield f"{inside}.{child.name}", child
            if isinstance(child, ast.ClassDef):
                yield from public(child, f"{inside}.{child.name}")


def test_no_two_classes_share_a_name() -> None:
    defined = defaultdict(list)
    for name, tree in TREES.items():
        if not name.startswith("fileio.testing"):
            for node in ast.walk(tree):
                if isinstance(node, ast.ClassDef):
                    defined[node.name.lstrip("_")].append(name)
    nested = {"Generator"}  # sqlglot's dialects hold a class of this name.
    assert {name: where for name, where in defined.items() if len(where) > 1 and name not in SHARED_NAMES | nested} == {}
