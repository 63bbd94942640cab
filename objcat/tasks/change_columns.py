"""Hidden columns of a row or change: its commit slot, commit time and change type."""

from __future__ import annotations

import pyarrow as pa

COMMIT_SLOT = "_commit_slot"
"""Hidden column: the slot of the commit that wrote the row."""


COMMIT_TIME = "_commit_time"
"""Hidden column: the commit time of that slot."""


COMMIT_FIELDS = (pa.field(COMMIT_SLOT, pa.int64()), pa.field(COMMIT_TIME, pa.timestamp("us", tz="UTC")))


CHANGE_TYPE = "_change_type"
"""Hidden column: the type of a change, one of `CHANGES`."""


INSERT, UPDATE_BEFORE, UPDATE_AFTER, DELETE = CHANGES = ("insert", "update_before", "update_after", "delete")


CHANGE_FIELDS = (pa.field(CHANGE_TYPE, pa.string()), *COMMIT_FIELDS)
