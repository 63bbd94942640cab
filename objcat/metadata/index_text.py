"""An index as text in SQL: `bucket(8)`, `simple`, `bloom`, `memory`, `record(16)`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from fileio.options import nearest
from objcat.common.validation import text as text_of
from objcat.errors import InvalidInput
from objcat.metadata.table_spec import BloomIndex, BucketIndex, Index, MemoryIndex, RecordIndex, SimpleIndex

INDEXES: Mapping[str, type[Any]] = {
    "bucket": BucketIndex,
    "simple": SimpleIndex,
    "bloom": BloomIndex,
    "memory": MemoryIndex,
    "record": RecordIndex,
}


def index_of_text(said: Any) -> Index:
    """An index by its name, with a number of buckets where it has one. Raises InvalidInput."""
    text = text_of(said, what="index", empty=True)
    found = re.fullmatch(r"(\w+)\s*(?:\(\s*(\d{1,9})\s*\))?", text.strip())
    name = found[1].lower() if found else text
    if found is None or name not in INDEXES or (found[2] and name not in ("bucket", "record")):
        raise InvalidInput(
            f"The index {text!r} is not known: {nearest(name, INDEXES)}. Write for example 'bucket(16)', 'bloom' or 'record(16)'."
        )
    index: Index = INDEXES[name](int(found[2])) if found[2] else INDEXES[name]()
    return index
