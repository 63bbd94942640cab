"""Tables over files as properties of SQL: what the properties mean, and that `lake.sql` creates no such table."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import objcat
from objcat.errors import InvalidInput, InvalidSql
from objcat.metadata.files_text import SOURCE_PROPERTIES, files_of_properties, properties_of_files
from tests.tables.in_place import as_json, rows

JSON = {"source": "in/*.json", "source.format": "json"}


def test_each_argument_is_a_property() -> None:
    files = files_of_properties(
        {
            "source": "s3://a/*.csv, s3://b/{host}/**/*.csv.gz",
            "objcat.source.format": "csv",
            "source.path_columns": "day date, `a b` decimal(10, 2),host",
            "source.line": "(?P<a>,)",
            "source.delimiter": "\t",
            "source.header": "FALSE",
            "source.nulls": ", NA",
            "source.bad_rows": "permit",
            "source.on_change": "replace",
            "Source.On_Missing": "drop",
            "source.precompute": "user, payload.status",
        },
        {"host": "int"},
    )
    assert files == objcat.Files(
        ["s3://a/*.csv", "s3://b/{host}/**/*.csv.gz"], format="csv", path_columns={"day": "date", "a b": "decimal(10, 2)", "host": "int"},
        line="(?P<a>,)", delimiter="\t", header=False, nulls=["", "NA"], bad_rows="permit", on_change="replace", on_missing="drop",
        precompute=["user", "payload.status"],
    )  # fmt: skip
    assert set(SOURCE_PROPERTIES.values()) == {one.name for one in dataclasses.fields(objcat.Files)}


def test_a_list_of_json_holds_texts_with_commas() -> None:
    files = files_of_properties({**JSON, "source": '["in/a,b.json", " c"]', "source.nulls": "[]", "source.precompute": ""}, {})
    assert (files.patterns, files.nulls, files.precompute) == (["in/a,b.json", " c"], [], [])


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"source": "in/*.json"}, "needs the property 'source.format', such as 'json' or parquet"),
        ({"source.format": "json"}, "needs the property 'source', such as 's3://"),
        (
            {**JSON, "source.formt": "x"},
            "The property 'source.formt' is not known. Nothing was done. Known are source, source.format, source.",
        ),
        ({**JSON, "objcat.source": "x"}, "The property source is given twice, also as objcat.source"),
        ({**JSON, "source.header": "1"}, "'source.header' is '1'. Nothing was done. Write 'true' or 'false'"),
        ({**JSON, "source.nulls": '["a"'}, "is no list of JSON"),
        ({**JSON, "source.precompute": "[1]"}, "does not hold texts only"),
        ({**JSON, "source.path_columns": "day date,,host"}, "where a name lacks"),
        ({**JSON, "source.path_columns": "day, day"}, "names 'day' twice"),
    ],
)
def test_wrong_properties_are_named(given: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidSql) as raised:
        files_of_properties(given, {})
    assert said in str(raised.value)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"precompute": ["id"], "bad_rows": "permit", "on_change": "replace", "on_missing": "drop"},
        {"format": "csv", "nulls": ["", "a,b", " "], "delimiter": "|", "header": False},
        {"format": "text", "line": r"(?P<id>\d+), (?P<name>.*)"},
    ],
)
def test_properties_of_a_table_create_the_same(settings: dict[str, Any], tmp_path: Path) -> None:
    lake = objcat.connect(tmp_path / "lake")
    patterns = [f"{tmp_path}/in/day=*/{{host}}/a, b.json", f"{tmp_path}/more/day=*/{{host}}/?.x"]
    source: Any = objcat.Files(patterns, path_columns={"day": "date"}, **{"format": "json", **settings})
    schema = pa.schema([("id", pa.int64()), ("name", pa.string()), ("host", pa.int32())])
    first = lake.create_table("first", schema, source=source)
    types = {"id": "bigint", "name": "string", "host": "int", "day": "date"}
    said = properties_of_files(first.spec, types)
    assert lake.create_table("second", schema, source=files_of_properties(said, types)).spec.in_place == first.spec.in_place


def test_other_tables_have_none(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.json").write_bytes(as_json(rows(0, 3)))
    lake = objcat.connect(tmp_path / "lake")
    plain = lake.create_table("t", pa.schema([("id", pa.int64())]), key=["id"])
    table = lake.create_table("u", source=objcat.Files(f"{tmp_path}/in/*.json", format="json"))
    assert properties_of_files(plain.spec, {}) == {} != properties_of_files(table.spec, {})
    table.refresh_files()
    table.maintenance.promote()
    assert properties_of_files(table.spec, {}) == {}


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TABLE t (id BIGINT) USING objcat TBLPROPERTIES ('source' = '{0}/*.json', 'source.format' = 'json')",
        "CREATE TABLE t (id BIGINT) TBLPROPERTIES ('objcat.Source.format' = 'json')",
        "CREATE TABLE t TBLPROPERTIES ('source' = '{0}/*.json', 'source.format' = 'json') AS SELECT 1 AS id",
    ],
)
def test_statements_of_a_lake_read_no_files(statement: str, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(as_json(rows(0, 3)))
    lake = objcat.connect(tmp_path / "lake")
    with pytest.raises(InvalidSql, match=r"Call lake.create_table\(name, source=objcat.Files"):
        lake.sql(statement.format(tmp_path))
    assert lake.tables() == []


def test_the_source_of_a_table_stays(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(as_json(rows(0, 3)))
    lake = objcat.connect(tmp_path / "lake")
    table = lake.create_table("t", source=objcat.Files(f"{tmp_path}/*.json", format="json"))
    with pytest.raises(InvalidInput, match="The files of a table are said when it is created"):
        lake.sql("ALTER TABLE t SET TBLPROPERTIES ('source.precompute' = 'id')")
    assert table.refresh().slot == 0
