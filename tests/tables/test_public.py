"""The public names of `objcat`, pinned: a change here is a change for everybody. And what is said where an optional library is missing."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any, get_args

import pytest

import fileio
import fileio.errors
import objcat
import objcat.errors
import objcat.spark
from objcat.common import validation
from objcat.metadata.properties import COMPACTION_ORDERS, SchemaMode
from objcat.metadata.table_spec import KEY_SCOPES, TABLE_TYPES
from objcat.planning.scan import MODES
from objcat.table.transaction import Isolation
from objcat.tasks.model import Operation

ROOT = Path(__file__).parents[2]
PUBLIC = """
    connect Lake Table Scan Transaction create_table_at table_at errors __version__
    BucketIndex SimpleIndex BloomIndex MemoryIndex RecordIndex FileGroupId Files
    AddColumn DropColumn RenameColumn MoveColumn WidenColumn DropNotNull SetDefault DropDefault
    AppVersion AppliedVersion SourcePosition StoredPosition CommitResult CommittedAt RolledBackAt CompactionStrategy MaintenanceReport
    CompactionCandidate FoundKeys KeyFile Progress report_progress DerivedLag RefreshResult
"""
WITHOUT = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name in {names!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Absent())
import fileio
try:
    {statement}
except fileio.MissingDependency as error:
    print(error)
"""


def test_the_public_names() -> None:
    assert sorted(objcat.__all__) == sorted(PUBLIC.split())


@pytest.mark.parametrize("module", [objcat, fileio, objcat.spark], ids=lambda module: module.__name__)
def test_dir_shows_the_public_names_only(module: object) -> None:
    assert sorted(dir(module)) == sorted(module.__all__)  # type: ignore[attr-defined]
    assert all(hasattr(module, name) for name in dir(module))


@pytest.mark.parametrize("module", [objcat.errors, fileio.errors], ids=lambda module: module.__name__)
def test_dir_of_errors_shows_errors_only(module: object) -> None:
    assert dir(module) and all(issubclass(getattr(module, name), Exception) for name in dir(module))


def test_every_public_class_and_function_is_documented() -> None:
    for name in objcat.__all__:
        value = getattr(objcat, name)
        if inspect.isclass(value) or inspect.isfunction(value):
            assert value.__doc__ and not value.__doc__.startswith(f"{name}("), f"{name} has no docstring of its own"


def test_the_version_is_that_of_the_package() -> None:
    assert objcat.__version__ == tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


@pytest.mark.parametrize(
    ("names", "statement", "said"),
    [
        (("pyspark",), "import objcat.spark", "objcat.spark needs pyspark, which is not installed. Run pip install 'objcat[spark]'."),
        (
            ("py4j",),
            "from objcat.spark import views",
            "objcat.spark needs pyspark, which cannot be imported (No module named 'py4j'). Run pip install 'objcat[spark]'.",
        ),
        (
            ("grpc",),
            "from objcat.spark import configure; from pyspark.sql import SparkSession as S; configure(S.builder.remote('sc://h'), '.')",
            "Spark Connect needs grpcio, which is not installed. Run pip install 'objcat[connect]'.",
        ),
        (
            ("boto3",),
            "import objcat; objcat.connect('s3://bucket/lake')",
            "s3:// needs boto3, which is not installed. Run pip install 'objcat[s3]'.",
        ),
        (
            ("google.cloud.storage",),
            "import objcat; objcat.connect('gs://bucket/lake')",
            "gs:// needs google-cloud-storage, which is not installed. Run pip install 'objcat[gcs]'.",
        ),
        (
            ("azure.storage.blob",),
            "import objcat; objcat.connect('az://data/lake', {'account': 'a', 'anonymous': 'true'})",
            "az:// needs azure-storage-blob, which is not installed. Run pip install 'objcat[azure]'.",
        ),
        (
            ("duckdb",),
            "import objcat; objcat.connect('memory:').sql('SELECT 1 AS one')",
            "SQL without Spark needs duckdb, which is not installed. Run pip install 'objcat[local]'.",
        ),
        (
            ("pyspark",),
            "import objcat; objcat.connect('memory:').sql('SELECT 1 AS one', object())",
            "objcat.spark needs pyspark, which is not installed. Run pip install 'objcat[spark]'.",
        ),
        (
            ("pyspark",),
            "from objcat.common.validation import session; session(object())",
            "a session of Spark needs pyspark, which is not installed. Run pip install 'objcat[spark]'.",
        ),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_a_library_that_is_missing_is_named_with_its_extra(names: tuple[str, ...], statement: str, said: str) -> None:
    code = WITHOUT.format(names=names, statement=statement)
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == said + "\n"


def test_a_library_that_is_there_and_broken_is_not_called_missing(tmp_path: Path) -> None:
    (tmp_path / "duckdb.py").write_text("raise ImportError('a symbol is undefined')")
    code = f"""
import sys
sys.path.insert(0, {str(tmp_path)!r})
import objcat
try:
    objcat.connect("memory:").sql("SELECT 1 AS one")
except Exception as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert (
        done.stdout
        == "SQL without Spark needs duckdb, which cannot be imported (a symbol is undefined). Run pip install 'objcat[local]'.\n"
    )


def test_options_that_take_one_of_some_words_are_literals() -> None:
    """So that an editor offers the words, and mypy refuses others. A new option of such a name cannot be plain text."""
    words = {"table_type", "key_scope", "mode", "schema_mode", "isolation", "if_exists", "order", "operation", "sort"}
    found: dict[str, str] = {}
    owners: list[Any] = [objcat.Lake, objcat.Table, objcat.Transaction, objcat.CompactionStrategy, objcat.spark, objcat]
    for owner in owners:
        for name, member in inspect.getmembers(owner, inspect.isfunction):
            if name.startswith("_") and name != "__init__":
                continue
            for parameter in inspect.signature(member).parameters.values():
                if parameter.name in words:
                    found[f"{owner.__name__}.{name}({parameter.name})"] = str(parameter.annotation)
    assert len(found) >= 12
    assert not [where for where, kind in found.items() if re.match(r"str\b", kind)]


@pytest.mark.parametrize(
    ("literal", "taken"),
    [
        (validation.TableType, TABLE_TYPES),
        (validation.KeyScope, KEY_SCOPES),
        (validation.SchemaModeName, tuple(SchemaMode)),
        (validation.ScanMode, MODES),
        (validation.IsolationName, tuple(Isolation)),
        (validation.OperationName, (*Operation, "overwrite")),
        (validation.GroupOrder, COMPACTION_ORDERS),
    ],
)
def test_the_words_of_a_literal_are_those_that_are_taken(literal: Any, taken: tuple[str, ...]) -> None:
    assert get_args(literal) == tuple(map(str, taken))
