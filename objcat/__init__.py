"""objcat: lakehouse tables on a bucket and nothing else.

    import objcat

    lake = objcat.connect("s3://lake")
    trips = lake.create_table("city.trips", schema, key=["trip_id"], ordering="updated_at")
    trips.upsert(batch)
    trips.scan(where="fare > 10").to_arrow()

Begin with `connect`, which opens a `Lake`, or with `create_table_at` and `table_at` for a table without a lake. `Table` has the writes and
reads. `errors` has what they raise. `objcat.spark` is for Spark. The import needs neither a JVM nor a cloud SDK.
"""

from objcat import errors
from objcat.common.progress import Progress, report_progress
from objcat.derived.refresh import DerivedLag, RefreshResult
from objcat.lake.lake import Lake, connect
from objcat.lake.standalone import create_table_at, table_at
from objcat.maintenance.compaction_plugin import CompactionCandidate
from objcat.maintenance.compaction_strategy import CompactionStrategy
from objcat.maintenance.maintain import MaintenanceReport
from objcat.metadata.in_place import Files
from objcat.metadata.schema_evolution import (
    AddColumn,
    DropColumn,
    DropDefault,
    DropNotNull,
    MoveColumn,
    RenameColumn,
    SetDefault,
    WidenColumn,
)
from objcat.metadata.table_spec import BloomIndex, BucketIndex, MemoryIndex, RecordIndex, SimpleIndex
from objcat.table.scan import Scan
from objcat.table.table import Table
from objcat.table.transaction import Transaction
from objcat.timeline.entry import FileGroupId
from objcat.timeline.log_state import AppliedVersion, AppVersion
from objcat.timeline.position import SourcePosition, StoredPosition
from objcat.timeline.rollback import CommittedAt, RolledBackAt
from objcat.version import VERSION
from objcat.write.index_plugin import FoundKeys, KeyFile
from objcat.write.transaction import CommitResult

__all__ = [
    "AddColumn",
    "AppVersion",
    "AppliedVersion",
    "BloomIndex",
    "BucketIndex",
    "CommitResult",
    "CommittedAt",
    "CompactionCandidate",
    "CompactionStrategy",
    "DerivedLag",
    "DropColumn",
    "DropDefault",
    "DropNotNull",
    "FileGroupId",
    "Files",
    "FoundKeys",
    "KeyFile",
    "Lake",
    "MaintenanceReport",
    "MemoryIndex",
    "MoveColumn",
    "Progress",
    "RecordIndex",
    "RefreshResult",
    "RenameColumn",
    "RolledBackAt",
    "Scan",
    "SetDefault",
    "SimpleIndex",
    "SourcePosition",
    "StoredPosition",
    "Table",
    "Transaction",
    "WidenColumn",
    "__version__",
    "connect",
    "create_table_at",
    "errors",
    "report_progress",
    "table_at",
]

__version__ = VERSION


def __dir__() -> list[str]:
    return __all__
