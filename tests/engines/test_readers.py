"""Each reader of another engine on tables that it did not get from objcat, and the comparison of rows."""

from __future__ import annotations

import pyarrow as pa
import pytest

from devkit.engines import AT_NIGHT, ENGINES
from tests.engines.process import Engines, ReadRefused
from tests.engines.rows import compare
from tests.engines.written import KINDS, WrittenTable, check_reader, expected


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", [name for name in ENGINES if name not in AT_NIGHT])
def test_it_reads_what_others_wrote(name: str, kind: str, engines: Engines, written: dict[str, WrittenTable]) -> None:
    check_reader(name, written[kind], engines)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["duckdb", "spark"])
def test_it_answers_a_question(name: str, kind: str, engines: Engines, written: dict[str, WrittenTable]) -> None:
    found = engines[name].read(written[kind].request("newest", 1, "select count(*) as c, max({0}) as m from {t} where {0} < 3", ("id",)))
    assert found.to_pylist() == [{"c": 1, "m": 1}]


def test_a_process_that_ended_is_started_again(engines: Engines, written: dict[str, WrittenTable]) -> None:
    engine = engines["duckdb"]
    request = written["delta"].request("newest", 1)
    engine.read(request)
    assert engine._process is not None
    engine._process.kill()
    with pytest.raises(ReadRefused, match="ended with status"):
        engine.read(request)
    assert engine.read(request).num_rows == 2


def test_rows_that_differ_are_told() -> None:
    assert compare(expected(1, 2), expected(2, 1)) is None
    for other in (expected(1), expected(1, 2, 2), expected(1, 3), pa.table({"id": [1, 2]})):
        assert compare(expected(1, 2), other) is not None
    floats = [pa.table({"f": [value]}) for value in (0.0, -0.0, float("nan"), None, 1.0)]
    assert all((compare(one, other) is None) == (i == j) for i, one in enumerate(floats) for j, other in enumerate(floats))


def test_types_that_differ_are_named() -> None:
    text = pa.table({"v": ["a", None]})
    found = compare(text, text.cast(pa.schema([("v", pa.binary())])))
    assert found is not None and found.shapes == {"string as binary"}
    small = pa.table({"n": pa.array([1], pa.int8())})
    assert compare(small, small.cast(pa.schema([("n", pa.int32())]))) is None
    assert compare(small, pa.table({"n": pa.array([1], pa.int64())})) is not None
    utc = pa.table({"t": pa.array([0], pa.timestamp("us", "UTC"))})
    assert compare(utc, utc.cast(pa.schema([("t", pa.timestamp("ns", "Etc/UTC"))]))) is None
    assert compare(utc, utc.cast(pa.schema([("t", pa.timestamp("us"))]))) is not None


def test_nulls_of_nested_types_may_be_empty_for_engines_without_them() -> None:
    kind = pa.list_(pa.int32())
    null, empty = pa.table({"l": pa.array([None], kind)}), pa.table({"l": pa.array([[]], kind)})
    assert compare(null, empty) is not None
    assert compare(null, empty, empties=True) is None
    assert compare(null, pa.table({"l": pa.array([[1]], kind)}), empties=True) is not None
