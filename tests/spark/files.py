"""Rows that tests of the format write, and the data files below a place."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa


def batch(first: int, last: int, value: str) -> pa.RecordBatch:
    return pa.record_batch({"id": list(range(first, last)), "value": [value] * (last - first)})


def data_files(place: Path) -> set[str]:
    # os.walk passes over directories that a writer takes away meanwhile; Path.rglob raises
    return {
        os.path.join(directory, name)
        for directory, _, names in os.walk(place)
        for name in names
        if name.endswith(".parquet") and "/data/" in directory + "/"
    }
