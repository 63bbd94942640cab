"""Table services: compaction, cleaning, purging, savepoints, restores, splits of buckets. Each is a plan, tasks, and one slot of the log.
`maintain` and `after` decide which of them are due.

Every service may run at any time, anywhere, twice and beside every writer. It yields to whoever was first, and plans again; no writer ever
conflicts with one that only rearranges rows.
"""

from objcat.services.clean import CleanPlan, CleanResult, clean, plan_clean
from objcat.services.cluster import ClusteringResult, cluster
from objcat.services.clustering import Clustering
from objcat.services.compact import (
    CompactionPlan,
    CompactionResult,
    Executed,
    compact,
    execute_scheduled,
    plan_compaction,
    schedule_compaction,
    scheduled_compactions,
)
from objcat.services.delete import delete_where
from objcat.services.maintain import Maintained, Step, maintain
from objcat.services.purge import purge
from objcat.services.restore import RestoreResult, restore
from objcat.services.savepoint import SavepointResult, release, savepoint
from objcat.services.split import SplitResult, split_buckets
from objcat.services.strategy import CompactionStrategy

__all__ = [
    "CleanPlan",
    "CleanResult",
    "Clustering",
    "ClusteringResult",
    "CompactionPlan",
    "CompactionResult",
    "CompactionStrategy",
    "Executed",
    "Maintained",
    "RestoreResult",
    "SavepointResult",
    "SplitResult",
    "Step",
    "clean",
    "cluster",
    "compact",
    "delete_where",
    "execute_scheduled",
    "maintain",
    "plan_clean",
    "plan_compaction",
    "purge",
    "release",
    "restore",
    "savepoint",
    "schedule_compaction",
    "scheduled_compactions",
    "split_buckets",
]
