"""`Policy`: what a table's properties say of its maintenance.

It says when to compact, what cleaning retains, and when buckets double.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from objcat.common.validation import GroupOrder
from objcat.metadata.properties import (
    AUTO_CLEAN,
    COMPACT_AFTER_BYTES,
    COMPACT_AFTER_COMMITS,
    COMPACT_AFTER_LOG_PERCENT,
    COMPACT_AFTER_S,
    COMPACT_IO_BYTES_MAX,
    COMPACT_LOG_BYTES_MIN,
    COMPACT_LOG_COUNT_MIN,
    COMPACT_ORDER,
    COMPACT_PARTITIONS_NEWEST,
    COMPACT_PARTITIONS_OLDER,
    COMPACT_PLAN_ONLY,
    COMPACT_STRATEGY,
    KEEP_COMMITS,
    KEEP_HOURS,
    KEEP_HOURS_DEFAULT,
    KEEP_VERSIONS,
    SPLIT_ABOVE_BYTES,
    check_properties,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """What cleaning retains: all that any of these retains. None: no rule.

    Args:
        commits: As the property `keep_commits`, like `versions` and `hours`.
    """

    commits: int | None = None
    versions: int | None = None
    hours: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The file groups that an automatic compaction takes, as in `objcat.maintenance.CompactionStrategy`. None: not set."""

    log_bytes_min: int | None = None
    log_count_min: int | None = None
    partitions_newest: int | None = None
    partitions_older: int | None = None
    order: GroupOrder = "log_bytes"
    plugin: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The maintenance settings of one table, from its properties. None: not set. plans_only: writes only schedule compactions."""

    compact_after_commits: int | None = None
    compact_after_bytes: int | None = None
    compact_after_s: int | None = None
    compact_after_log_percent: int | None = None
    compact_io_bytes_max: int | None = None
    choice: Choice = Choice()
    plans_only: bool = False
    auto_clean: bool = True
    retention: Retention = Retention(hours=KEEP_HOURS_DEFAULT)
    split_above_bytes: int | None = None

    @property
    def compacts(self) -> bool:
        """Whether writes compact the table when it is due."""
        triggers = (self.compact_after_commits, self.compact_after_bytes, self.compact_after_s, self.compact_after_log_percent)
        return any(said is not None for said in triggers)


def policy_of(properties: Mapping[str, str]) -> Policy:
    """The policy in the properties of a table. Raises InvalidInput for invalid values."""
    check_properties(properties)

    def number(name: str) -> int | None:
        return int(properties[name]) if name in properties else None

    kept = Retention(commits=number(KEEP_COMMITS), versions=number(KEEP_VERSIONS), hours=number(KEEP_HOURS))
    return Policy(
        compact_after_commits=number(COMPACT_AFTER_COMMITS),
        compact_after_bytes=number(COMPACT_AFTER_BYTES),
        compact_after_s=number(COMPACT_AFTER_S),
        compact_after_log_percent=number(COMPACT_AFTER_LOG_PERCENT),
        compact_io_bytes_max=number(COMPACT_IO_BYTES_MAX),
        choice=Choice(
            log_bytes_min=number(COMPACT_LOG_BYTES_MIN),
            log_count_min=number(COMPACT_LOG_COUNT_MIN),
            partitions_newest=number(COMPACT_PARTITIONS_NEWEST),
            partitions_older=number(COMPACT_PARTITIONS_OLDER),
            order=cast("GroupOrder", properties.get(COMPACT_ORDER, "log_bytes")),
            plugin=properties.get(COMPACT_STRATEGY),
        ),
        plans_only=properties.get(COMPACT_PLAN_ONLY, "false") == "true",
        auto_clean=properties.get(AUTO_CLEAN, "true") == "true",
        retention=Retention(hours=KEEP_HOURS_DEFAULT) if kept == Retention() else kept,
        split_above_bytes=number(SPLIT_ABOVE_BYTES),
    )
