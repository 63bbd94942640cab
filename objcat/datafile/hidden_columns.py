"""Hidden columns of data files, and the field ids that they have there."""

from __future__ import annotations

import pyarrow as pa

from objcat.datafile.merge import OP_COLUMN
from objcat.metadata.schema import FIELD_ID_KEY

TXN_COLUMN = "_objcat_txn"
"""Hidden column of base files: the transaction that wrote the row."""
HIDDEN_IDS = {TXN_COLUMN: 2_147_480_001, OP_COLUMN: 2_147_480_002}
"""Field ids of hidden columns, far above those of a table's columns. Readers of Iceberg refuse a file with a column without an id."""


def with_hidden_ids(schema: pa.Schema) -> pa.Schema:
    """The schema of a file, in which hidden columns have field ids too."""
    for at, field in enumerate(schema):
        if field.name in HIDDEN_IDS:
            schema = schema.set(at, field.with_metadata({FIELD_ID_KEY: str(HIDDEN_IDS[field.name]).encode()}))
    return schema
