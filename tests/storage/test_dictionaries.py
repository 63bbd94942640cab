"""Columns without a dictionary are those whose values are nearly all different, and files say the same with and without."""

from __future__ import annotations

import io

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from objcat.datafile.dictionaries import SAMPLE_ROWS, columns_with_dictionary, leaf_paths

ROWS = 30_000
DICE = np.random.default_rng(11)


def rows(count: int = ROWS) -> pa.Table:
    return pa.table(
        {
            "key": pa.array(np.arange(count)),
            "customer": pa.array(DICE.integers(0, 1_000_000, count)),
            "clerk": pa.array([f"clerk {number}" for number in DICE.integers(0, 1000, count).tolist()]),
            "comment": pa.array([f"comment {number}" for number in range(count)]),
            "paid": pa.array(np.arange(count) % 2 == 0),
            "none": pa.array([None] * count, pa.string()),
            "place": pa.array([{"street": f"street {number}", "lines": [number]} for number in range(count)]),
        }
    )


def test_columns_of_different_values_get_no_dictionary() -> None:
    chosen = columns_with_dictionary(rows())
    assert chosen == ["clerk", "paid", "none", "place.street", "place.lines.list.element"]
    assert columns_with_dictionary(rows(SAMPLE_ROWS - 1)) is True
    assert columns_with_dictionary(rows().select(["clerk", "paid"])) is True
    # Rows of an order come one after the other: the sample is not of one place only.
    grouped = pa.table({"key": pa.array(np.concatenate([np.arange(ROWS // 2), np.zeros(ROWS // 2, np.int64)]))})
    assert columns_with_dictionary(grouped) is True


def test_files_hold_the_same_rows_in_fewer_bytes() -> None:
    found = {}
    for name, given in (("all", True), ("chosen", columns_with_dictionary(rows()))):
        source, sink = rows().drop_columns(["place"]), io.BytesIO()
        pq.write_table(source, sink, compression="zstd", use_dictionary=given, dictionary_pagesize_limit=64 * 1024)
        assert pq.read_table(io.BytesIO(sink.getvalue())).equals(source)
        found[name] = len(sink.getvalue())
    assert found["chosen"] < found["all"]


def test_paths_are_those_of_the_file() -> None:
    sink = io.BytesIO()
    pq.write_table(rows(10), sink)
    known = pq.ParquetFile(io.BytesIO(sink.getvalue())).schema
    assert leaf_paths(rows(10).schema) == [known.column(number).path for number in range(len(known.names))]
    assert leaf_paths(rows(10).select(["key", "clerk"]).schema) == ["key", "clerk"]
