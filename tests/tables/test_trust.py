"""What the page on security says of the code as a whole: rules that hold for every module, and tests that exist."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
UNPICKLE = {
    "objcat/ingest/kafka/topic_rows.py",
    "objcat/ingest/spark_topics.py",
    "objcat/spark/engine.py",
    "objcat/spark/index_lookup.py",
    "objcat/spark/native/changes.py",
    "objcat/spark/native/format.py",
    "objcat/spark/native/scan.py",
    "objcat/spark/partition_moves.py",
    "objcat/spark/services.py",
    "objcat/spark/worker_task.py",
    *(f"pyspark_objcat/{name}.py" for name in ("follow", "job", "source")),
}
"""Modules that read pickles: what a driver sent to its own workers, and what these send back."""
RUNS = {"eval", "exec", "compile", "os.system", "os.popen", "marshal.loads", "shelve.open", "yaml.load", "tempfile.mktemp"}


def calls() -> Iterator[tuple[str, str]]:
    """Every call in the code that runs for users: its module, and what is called, as it is written. Not in the tests that are shipped."""
    for package in ("fileio", "objcat", "pyspark_objcat"):
        for path in sorted((ROOT / package).rglob("*.py")):
            if path.parent.name == "testing":
                continue
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Call):
                    yield path.relative_to(ROOT).as_posix(), ast.unparse(node.func)


def test_nothing_is_unpickled_that_a_store_holds() -> None:
    found = {module for module, called in calls() if called in ("pickle.loads", "pickle.load", "pickles.loads", "pickle.Unpickler")}
    assert found == UNPICKLE


def test_no_text_is_run_and_no_process_begun() -> None:
    found = {(module, called) for module, called in calls() if called in RUNS or called.startswith("subprocess.")}
    assert found == set()


def test_temporary_files_are_those_that_only_their_owner_finds() -> None:
    """`mkdtemp`, `TemporaryDirectory` and `TemporaryFile` make them of mode 0700 and 0600."""
    found = {called for _, called in calls() if called.startswith("tempfile.")}
    assert found <= {"tempfile.mkdtemp", "tempfile.TemporaryDirectory", "tempfile.TemporaryFile", "tempfile.gettempdir"}


def test_every_promise_has_its_test() -> None:
    page = (ROOT / "docs" / "security.md").read_text()
    rows = re.findall(r"^\| (?!promise)[^|]+ \| ([^|]+) \|$", page, re.MULTILINE)
    named = [name for row in rows for name in re.findall(r"`(tests/[^`]+)`", row)]
    assert len(named) >= 20 and all((ROOT / name).exists() for name in named), named
    after = page.split("## SQL text")[1].split("## To report")[0]
    assert all("`tests/" in line for line in after.splitlines() if line.startswith("| ") and not line.startswith("| promise"))
