"""Properties of a table that are settings of objcat's own: what they are called, and what they take. All others are notes of its users."""

from __future__ import annotations

import difflib
import enum
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from fileio.options import nearest
from objcat.common.validation import one_of
from objcat.errors import InvalidInput

TARGET_FILE_BYTES = "target_file_bytes"
"""How large files shall become where rows may lie in any: in tables without a key, and under an index that looks keys up."""
TARGET_FILE_BYTES_DEFAULT = 128 * 1024**2
MEMORY_INDEX_BYTES = "memory_index_bytes"
"""What a writer may remember of a table with the memory index; one that would need more reads keys, as under the simple index."""
MEMORY_INDEX_BYTES_DEFAULT = 1024**3
SCHEMA_MODE = "schema_mode"
"""What writes that do not say it themselves may do to the schema, one of `SchemaMode`."""
COMPACT_AFTER_COMMITS = "compact_after_commits"
"""Compact after a write, when log rows of so many commits wait to be merged."""
COMPACT_AFTER_BYTES = "compact_after_bytes"
"""The same, when so many bytes of log rows wait."""
COMPACT_AFTER_S = "compact_after_s"
"""The same, when the oldest log rows that wait were committed so many seconds before the newest commit."""
COMPACT_AFTER_LOG_PERCENT = "compact_after_log_percent"
"""The same, when the log rows that wait are so many percent of the bytes of the base files that they wait for."""
COMPACT_IO_BYTES_MAX = "compact_io_bytes_max"
"""What one compaction by policy reads and writes at most, in bytes."""
COMPACT_LOG_BYTES_MIN, COMPACT_LOG_COUNT_MIN = "compact_log_bytes_min", "compact_log_count_min"
COMPACT_PARTITIONS_NEWEST, COMPACT_PARTITIONS_OLDER = "compact_partitions_newest", "compact_partitions_older"
COMPACT_ORDER = "compact_order"
"""What a compaction by policy takes, as of `objcat.maintenance.CompactionStrategy`."""
COMPACTION_ORDERS = ("log_bytes", "log_count", "newest")
COMPACT_PLAN_ONLY = "compact_plan_only"
"""Whether writes only leave a plan when a compaction is due, for another job to execute, `true` or `false`."""
TARGET_LOG_BYTES = "target_log_bytes"
"""How many bytes of rows, as Arrow holds them, become one log file, about."""
TARGET_LOG_BYTES_DEFAULT = 128 * 1024**2
AUTO_CLEAN = "auto_clean"
"""Whether writes clean the table by what `keep_...` says, `true` or `false`."""
KEEP_COMMITS = "keep_commits"
"""Cleaning by policy keeps what the newest so many commits left readable."""
KEEP_VERSIONS = "keep_versions"
"""Cleaning by policy keeps what the newest so many commits left that wrote base files."""
KEEP_HOURS = "keep_hours"
"""Cleaning by policy keeps what was there in the so many hours before the newest commit."""
KEEP_HOURS_DEFAULT = 168
"""Where no property says what is kept: a week."""
SPLIT_ABOVE_BYTES = "split_above_bytes"
"""The buckets of a partition double when they hold more than so many bytes each, on average."""


STATISTICS = "statistics."
"""With the name of a column behind it: what metadata says of its values, one of `STATISTICS_KINDS`."""
STATISTICS_KINDS = ("values", "none")


@dataclass(frozen=True, slots=True)
class Statistics:
    """Of which columns a file says the least and greatest values, by their ids. always: however many columns come before. never: nowhere,
    neither in entries, manifests and footers nor by bloom filters."""

    always: frozenset[int] = frozenset()
    never: frozenset[int] = frozenset()


class SchemaMode(enum.StrEnum):
    """What a write may do to the schema. STRICT: nothing. ADD: columns and fields of the batch that the table lacks come last, nullable.
    WIDEN: that, and types become as wide as the batch's where every value survives."""

    STRICT = "strict"
    ADD = "add"
    WIDEN = "widen"


@dataclass(frozen=True, slots=True)
class _Number:
    """A property that is a whole number between two others, both included. example: of one."""

    example: int
    least: int = 1
    most: int = 10**18 - 1


_NUMBERS: Mapping[str, _Number] = {
    TARGET_FILE_BYTES: _Number(TARGET_FILE_BYTES_DEFAULT, least=1024, most=64 * 1024**3),
    MEMORY_INDEX_BYTES: _Number(MEMORY_INDEX_BYTES_DEFAULT, least=0),
    COMPACT_AFTER_COMMITS: _Number(16),
    COMPACT_AFTER_BYTES: _Number(256 * 1024**2),
    COMPACT_AFTER_S: _Number(3600),
    COMPACT_AFTER_LOG_PERCENT: _Number(30, most=100_000),
    COMPACT_IO_BYTES_MAX: _Number(10 * 1024**3),
    COMPACT_LOG_BYTES_MIN: _Number(1024**2),
    COMPACT_LOG_COUNT_MIN: _Number(4),
    COMPACT_PARTITIONS_NEWEST: _Number(2),
    COMPACT_PARTITIONS_OLDER: _Number(2),
    TARGET_LOG_BYTES: _Number(TARGET_LOG_BYTES_DEFAULT, least=1024, most=4 * 1024**3),
    KEEP_COMMITS: _Number(100),
    KEEP_VERSIONS: _Number(3),
    KEEP_HOURS: _Number(KEEP_HOURS_DEFAULT),
    SPLIT_ABOVE_BYTES: _Number(1024**3),
}
_WORDS: Mapping[str, Iterable[str]] = {
    SCHEMA_MODE: SchemaMode,
    AUTO_CLEAN: ("true", "false"),
    COMPACT_PLAN_ONLY: ("true", "false"),
    COMPACT_ORDER: COMPACTION_ORDERS,
}

_SAID_AT_CREATION = ("key", "ordering", "lateness", "partition_by", "key_scope", "index", "kind", "domain")
"""Settings of a table that are no properties: as one, each would be a note that changes nothing."""
_FAMILIES = ("keep_", "compact_")
"""What several settings begin with: another one that does was meant for a setting too."""
_ALIKE = 0.8
"""From which on two names are taken for one that was mistyped; 1 is the same."""


def check_properties(properties: Mapping[str, str]) -> None:
    """Raises InvalidInput for a value that a setting does not take."""
    for name, words in _WORDS.items():
        if name in properties:
            one_of(properties[name], words, what=f"the property {name}")
    for name, number in _NUMBERS.items():
        said = properties.get(name)
        if said is None:
            continue
        if not said.isascii() or not said.isdigit() or len(said) > 18 or not number.least <= int(said) <= number.most:
            most = f"to {number.most:,}" if number.most < 10**18 - 1 else "up"
            raise InvalidInput(
                f"the property {name!r} is {said!r}: give a whole number from {number.least:,} {most} as text, e.g. '{number.example}'"
            )


def check_together(properties: Mapping[str, str]) -> None:
    """Raises InvalidInput for settings of one table that contradict one another."""
    if COMPACT_PARTITIONS_NEWEST in properties and COMPACT_PARTITIONS_OLDER in properties:
        raise InvalidInput(
            f"the properties {COMPACT_PARTITIONS_NEWEST} and {COMPACT_PARTITIONS_OLDER} say what the other leaves: unset one of them; "
            "nothing was written"
        )


def check_statistics(properties: Mapping[str, str], columns: Sequence[str]) -> None:
    """Raises InvalidInput for a column that is not there, and for what no column can have. columns: their names."""
    for name, said in properties.items():
        if name.startswith(STATISTICS):
            column = name.removeprefix(STATISTICS)
            if column not in columns:
                raise InvalidInput(f"the property {name!r} names no column of the table: {nearest(column, columns)}; nothing was written")
            one_of(said, STATISTICS_KINDS, what=f"the property {name}")


def silenced(properties: Mapping[str, str]) -> frozenset[str]:
    """The names of the columns of which metadata says nothing."""
    return frozenset(name.removeprefix(STATISTICS) for name, said in properties.items() if name.startswith(STATISTICS) and said == "none")


def check_names(names: Iterable[str]) -> None:
    """Raises InvalidInput for the name of a note that looks as if it were meant for a setting, whose value nobody would look at."""
    for name in names:
        if name in _NUMBERS or name in _WORDS:
            continue
        near = _nearest(name)
        if near is not None:
            which = ", which is said when a table is created, and is no property" if near in _SAID_AT_CREATION else ""
            raise InvalidInput(
                f"the property {name!r} would be a note that changes nothing: did you mean {near!r}{which}? A note of your own may be "
                f"called {_noted(name)!r}; nothing was written"
            )


def _nearest(name: str) -> str | None:
    """The setting that a name looks like; None for what is no one's business but the user's: a name with a prefix of its own is that."""
    own = name.casefold().removeprefix("objcat.")
    if "." in own:
        return None
    known = {_letters(setting): setting for setting in (*_NUMBERS, *_WORDS, *_SAID_AT_CREATION)}
    family = re.sub(r"[^a-z0-9]", "_", own).startswith(_FAMILIES)
    close = difflib.get_close_matches(_letters(own), known, n=1, cutoff=0.0 if family else _ALIKE)
    return known[close[0]] if close else None


def _letters(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.casefold())


def _noted(name: str) -> str:
    return f"notes.{name.casefold().removeprefix('objcat.')}"
