"""Table services: compaction, cleaning, purging, savepoints, restores, splits of buckets. Each is a plan, tasks, and one slot of the log.

Every service may run at any time, anywhere, twice and beside every writer. It yields to whoever was first, and plans again; no writer ever
conflicts with one that only rearranges rows.
"""

from objcat.services.clean import CleanPlan, CleanResult, clean, plan_clean
from objcat.services.compact import CompactionPlan, CompactionResult, compact, plan_compaction, schedule_compaction, scheduled_compactions
from objcat.services.erase import erase
from objcat.services.purge import purge
from objcat.services.restore import RestoreResult, restore
from objcat.services.savepoint import SavepointResult, release, savepoint
from objcat.services.split import SplitResult, split_buckets

__all__ = [
    "CleanPlan",
    "CleanResult",
    "CompactionPlan",
    "CompactionResult",
    "RestoreResult",
    "SavepointResult",
    "SplitResult",
    "clean",
    "compact",
    "erase",
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
