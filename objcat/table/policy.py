"""What a table's properties say of its upkeep: when to compact it, what cleaning keeps, when its buckets double."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from objcat.arguments import one_of
from objcat.errors import InvalidInput

COMPACT_AFTER_COMMITS = "compact_after_commits"
"""Property: compact after a write, when log rows of so many commits wait to be merged."""
COMPACT_AFTER_BYTES = "compact_after_bytes"
"""Property: the same, when so many bytes of log rows wait."""
COMPACT_AFTER_S = "compact_after_s"
"""Property: the same, when the oldest log rows that wait were committed so many seconds before the newest commit."""
COMPACT_IO_BYTES_MAX = "compact_io_bytes_max"
"""Property: what one compaction by policy reads and writes at most, in bytes."""
AUTO_CLEAN = "auto_clean"
"""Property: whether writes clean the table by what `keep_...` says, `true` or `false`."""
KEEP_COMMITS = "keep_commits"
"""Property: cleaning by policy keeps what the newest so many commits left readable."""
KEEP_VERSIONS = "keep_versions"
"""Property: cleaning by policy keeps what the newest so many commits left that wrote base files."""
KEEP_HOURS = "keep_hours"
"""Property: cleaning by policy keeps what was there in the so many hours before the newest commit."""
KEEP_HOURS_DEFAULT = 168
"""Where no property says what is kept: a week."""
SPLIT_ABOVE_BYTES = "split_above_bytes"
"""Property: the buckets of a partition double when they hold more than so many bytes each, on average."""

NUMBERS: Mapping[str, int] = {
    COMPACT_AFTER_COMMITS: 16,
    COMPACT_AFTER_BYTES: 256 * 1024**2,
    COMPACT_AFTER_S: 3600,
    COMPACT_IO_BYTES_MAX: 10 * 1024**3,
    KEEP_COMMITS: 100,
    KEEP_VERSIONS: 3,
    KEEP_HOURS: KEEP_HOURS_DEFAULT,
    SPLIT_ABOVE_BYTES: 1024**3,
}
"""Properties that are whole numbers from 1 up, each with an example."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """What cleaning keeps: whatever one of these keeps. commits, versions, hours: as of the properties `keep_...`; None: says nothing."""

    commits: int | None = None
    versions: int | None = None
    hours: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The upkeep of one table, as its properties say it. None: not said."""

    compact_after_commits: int | None = None
    compact_after_bytes: int | None = None
    compact_after_s: int | None = None
    compact_io_bytes_max: int | None = None
    auto_clean: bool = True
    retention: Retention = Retention(hours=KEEP_HOURS_DEFAULT)
    split_above_bytes: int | None = None

    @property
    def compacts(self) -> bool:
        """Whether writes compact the table when it is time."""
        return any(said is not None for said in (self.compact_after_commits, self.compact_after_bytes, self.compact_after_s))


def policy_of(properties: Mapping[str, str]) -> Policy:
    """The policy that the properties of a table say. Raises InvalidInput for values that they do not take."""
    check_policy(properties)
    said = {name: int(properties[name]) for name in NUMBERS if name in properties}
    kept = Retention(commits=said.get(KEEP_COMMITS), versions=said.get(KEEP_VERSIONS), hours=said.get(KEEP_HOURS))
    return Policy(
        compact_after_commits=said.get(COMPACT_AFTER_COMMITS),
        compact_after_bytes=said.get(COMPACT_AFTER_BYTES),
        compact_after_s=said.get(COMPACT_AFTER_S),
        compact_io_bytes_max=said.get(COMPACT_IO_BYTES_MAX),
        auto_clean=properties.get(AUTO_CLEAN, "true") == "true",
        retention=Retention(hours=KEEP_HOURS_DEFAULT) if kept == Retention() else kept,
        split_above_bytes=said.get(SPLIT_ABOVE_BYTES),
    )


def check_policy(properties: Mapping[str, str]) -> None:
    """Raises InvalidInput for a value that a property of the upkeep does not take."""
    if AUTO_CLEAN in properties:
        one_of(properties[AUTO_CLEAN], ("true", "false"), what=f"the property {AUTO_CLEAN}")
    for name, example in NUMBERS.items():
        said = properties.get(name)
        if said is not None and (not said.isascii() or not said.isdigit() or len(said) > 18 or int(said) < 1):
            raise InvalidInput(f"the property {name!r} is {said!r}: give a whole number from 1 up as text, e.g. '{example}'")
