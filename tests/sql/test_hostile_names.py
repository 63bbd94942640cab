"""Names and values that mean something to SQL, to a shell, to a path or to a terminal mean themselves everywhere."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import objcat
from objcat.errors import InvalidInput, NamespaceExists, TableExists
from tests.cli.commands import run

NAMES = {
    "quote": "it's",
    "double": 'say "so"',
    "backtick": "a`b``c",
    "semicolon": "x; DROP TABLE trips; --",
    "comment": "/* x */ -- y",
    "backslash": "a\\b\\",
    "variable": "${env:HOME}",
    "brace": "{x} {0} {{}}",
    "markup": "<script>alert(1)</script>",
    "percent": "100%d %s %%",
    "newline": "a\nb\r\tc",
    "bidi": "\u202eabc\u202c",
    "escape": "\x1b[31mred",
    "emoji": "👩‍👩‍👧 🇮🇹",
    "accent": "e\u0301 ﬁ ß",
    "long": "x" * 200,
    "path": "../../etc/passwd",
    "absolute": "/etc/passwd",
    "dots": "a.b..c",
    "equals": "a=b/c",
    "space": "  lead and trail  ",
    "word": "select",
    "star": "*",
    "empty-like": "''",
    "parameter": ":x ?1 $1 @@y",
}


def said(name: str) -> str:
    """As SQL says a name."""
    return "`" + name.replace("`", "``") + "`"


def text(value: str) -> str:
    """As SQL says text."""
    return "'" + value.replace("\\", "\\\\").replace("'", "''") + "'"


def made(place: Path, name: str, **settings: Any) -> objcat.Table:
    schema = pa.schema([("id", pa.int64()), (name, pa.string()), ("inner", pa.struct([(name, pa.int64())]))])
    return objcat.connect(place).create_table("trips", schema, key=["id"], index=objcat.BucketIndex(1), **settings)


@pytest.mark.parametrize("what", NAMES)
def test_a_column_may_be_called_so(tmp_path: Path, what: str) -> None:
    name = NAMES[what]
    lake, table = objcat.connect(tmp_path), made(tmp_path, name, properties={name: name})
    table.upsert([{"id": 1, name: name, "inner": {name: 7}}, {"id": 2, name: None, "inner": None}], metadata={name: name})
    row = {"id": 1, name: name, "inner": {name: 7}}
    column, field = said(name), f"`inner`.{said(name)}"
    assert table.scan(where=f"{column} = {text(name)}").to_arrow().to_pylist() == [row]
    assert table.scan(where=f"{field} = 7", columns=[name]).to_arrow().to_pylist() == [{name: name}]
    assert lake.sql(f"SELECT * FROM trips WHERE {column} = {text(name)}").to_pylist() == [row]
    assert lake.sql(f"SELECT t.{column} AS {column}, t.inner.{said(name)} AS f FROM trips t WHERE t.{field} > 6").to_pylist() == [
        {name: name, "f": 7}
    ]
    assert lake.sql(f"SELECT {text(name)} AS x").to_pylist() == [{"x": name}]
    table.update({name: f"concat({column}, 'x')"}, where=f"{column} = {text(name)}")
    lake.sql(f"UPDATE trips SET {column} = concat({column}, {text(name)}) WHERE {field} = 7")
    assert table.scan(where="id = 1").to_arrow()[name].to_pylist() == [f"{name}x{name}"]
    lake.sql(f"MERGE INTO trips t USING (SELECT 2 AS id, {text(name)} AS v) s ON t.id = s.id WHEN MATCHED THEN UPDATE SET t.{column} = s.v")
    assert table.scan(where="id = 2").to_arrow()[name].to_pylist() == [name]
    assert table.scan(where=f"{column} = {text(name)}").to_duckdb().fetchall()[0][1] == name
    lake.sql(f"DELETE FROM trips WHERE {column} = {text(name)}")
    assert table.scan().count() == 1 and table.properties[name] == name
    assert [entry.metadata for entry in table.inspect.history()][1] == {name: name}


@pytest.mark.parametrize("what", NAMES)
def test_a_partition_may_be_called_so(tmp_path: Path, what: str) -> None:
    name = NAMES[what]
    lake = objcat.connect(tmp_path / "lake")
    schema = pa.schema([("id", pa.int64()), (name, pa.string())])
    table = lake.create_table("trips", schema, key=["id", name], partition_by=[name])
    table.insert([{"id": 1, name: name}, {"id": 2, name: "other"}])
    assert table.scan(where=f"{said(name)} = {text(name)}").to_arrow().to_pylist() == [{"id": 1, name: name}]
    assert len(table.inspect.partitions()) == 2
    inside = (tmp_path / "lake").resolve()
    assert all(path.resolve().is_relative_to(inside) for path in (tmp_path / "lake").rglob("*"))
    assert [path.name for path in tmp_path.iterdir()] == ["lake"]
    lake.sql(f"ALTER TABLE trips DROP PARTITION ({said(name)} = {text(name)})")
    assert table.scan().to_arrow().to_pylist() == [{"id": 2, name: "other"}]
    for words in (["schema"], ["partitions"], ["files"], ["log"], ["doctor", "--deep"], ["report", str(tmp_path / "p.html")]):
        done = run(words[0], f"{tmp_path}/lake/trips", *words[1:])
        assert done.returncode == 0 and "\x1b[31m" not in done.stdout, done.stderr
    assert "<script>alert" not in (tmp_path / "p.html").read_text()


@pytest.mark.parametrize("what", NAMES)
def test_a_table_may_not_where_an_engine_could_not_say_it(tmp_path: Path, what: str) -> None:
    """Letters, digits, `_` and `-` of any script only: so the name is a part of paths as it is."""
    name = NAMES[what]
    lake = objcat.connect(tmp_path)
    for make in (
        lambda: lake.create_table(name, pa.schema([("id", pa.int64())]), key=["id"]),
        lambda: lake.namespaces.create(name),
        lambda: lake.sql(f"CREATE TABLE {said(name)} (id BIGINT, PRIMARY KEY (id))"),
    ):
        with contextlib.suppress(InvalidInput, NamespaceExists, TableExists):
            make()
    made_names = [*lake.tables(), *lake.namespaces.list()]
    assert all(part.replace("_", "").replace("-", "").isalnum() for found in made_names for part in found.split("."))
    assert bool(made_names) == (what in ("word", "long"))


def test_nul_is_text_or_refused(tmp_path: Path) -> None:
    lake = objcat.connect(tmp_path)
    table = lake.create_table("trips", pa.schema([("id", pa.int64()), ("s", pa.string())]), key=["id"])
    table.upsert([{"id": 1, "s": "a\0b"}])
    assert table.scan(where="s = 'a\0b'").to_arrow().to_pylist() == lake.sql("SELECT * FROM trips").to_pylist() == [{"id": 1, "s": "a\0b"}]
    try:
        lake.create_table("nul", pa.schema([("id", pa.int64()), ("a\0b", pa.string())]), key=["id"]).upsert([{"id": 1, "a\0b": "x"}])
    except InvalidInput:
        return
    assert lake.table("nul").scan().to_arrow().to_pylist() == [{"id": 1, "a\0b": "x"}]
