"""Properties of a table that are settings of objcat: their names and values. All others are notes of its users.

To add a property: write a constant with a docstring here, and an entry in `NUMBERS`, `WORDS` or `PLUGINS`, which check values; in
`DEFAULTS` if it has one; and in `SINCE`. Then read it in `objcat.metadata.table_spec`, or for table services in
`objcat.metadata.maintenance_policy`.
`./dev docs reference` writes the docstrings of the constants into `docs/reference/properties.md`. Test it by `Table.set_properties`.
"""

from __future__ import annotations

import difflib
import enum
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from fileio.options import nearest
from objcat.common.plugins import check_plugin_name
from objcat.common.validation import one_of
from objcat.errors import InvalidInput

TARGET_FILE_BYTES = "target_file_bytes"
"""The target size of a data file, in bytes, where a row may be in any file: in tables without a key, and under an index that looks keys
up (simple, bloom, memory, record). Writes fill the smallest file group of a partition up to this size, then begin another."""
TARGET_FILE_BYTES_DEFAULT = 128 * 1024**2
MEMORY_INDEX_BYTES = "memory_index_bytes"
"""How many bytes a `Table` handle may use to remember keys under the memory index. One key takes about 12 bytes. A handle that would need
more remembers nothing, and reads keys on each write, as under the simple index."""
MEMORY_INDEX_BYTES_DEFAULT = 1024**3
INDEX_PLUGIN = "index_plugin"
"""The index of an installed package that remembers which data files hold which keys: the name of its entry point in the group
`objcat.indexes`. It is for tables with `SimpleIndex` or `BloomIndex`. A process without the package reads the files instead. A property
`index_plugin.` with a name behind the dot is an option that the index gets."""
SCHEMA_MODE = "schema_mode"
"""What a write may do to the schema when it does not pass `schema_mode` itself. `strict`: nothing. `add`: it adds columns and fields of the
batch that the table lacks. `widen`: it also makes types as wide as those of the batch."""
COMPACT_AFTER_COMMITS = "compact_after_commits"
"""Compact after a write when log rows of this many commits wait to be merged. Without a `compact_after_...` property, writes compact
nothing."""
COMPACT_AFTER_BYTES = "compact_after_bytes"
"""Compact after a write when this many bytes of log rows wait to be merged."""
COMPACT_AFTER_S = "compact_after_s"
"""Compact after a write when the oldest log rows that wait were committed this many seconds before the newest commit."""
COMPACT_AFTER_LOG_PERCENT = "compact_after_log_percent"
"""Compact after a write when the waiting log rows have this many percent of the bytes of their base files. Log rows without a base file
exceed any percentage."""
COMPACT_IO_BYTES_MAX = "compact_io_bytes_max"
"""The most bytes that one automatic compaction reads and writes. It always takes the first file group, whatever its size."""
COMPACT_LOG_BYTES_MIN = "compact_log_bytes_min"
"""Automatic compaction takes only file groups with at least this many bytes of log rows."""
COMPACT_LOG_COUNT_MIN = "compact_log_count_min"
"""Automatic compaction takes only file groups with at least this many runs of log rows. One run is what one log file holds for the file
group."""
COMPACT_PARTITIONS_NEWEST = "compact_partitions_newest"
"""Automatic compaction takes only file groups in this many of the newest partitions, by the values of the partition columns. It
cannot be set together with `compact_partitions_older`."""
COMPACT_PARTITIONS_OLDER = "compact_partitions_older"
"""Automatic compaction takes only file groups outside this many of the newest partitions. It cannot be set together with
`compact_partitions_newest`."""
COMPACT_ORDER = "compact_order"
"""Which file groups automatic compaction takes first when `compact_io_bytes_max` leaves some out. `log_bytes`: those with the most bytes of
log rows. `log_count`: those with the most runs of log rows. `newest`: those in the newest partitions."""
COMPACT_STRATEGY = "compact_strategy"
"""The strategy of an installed package that chooses among the file groups that the other properties select, and says which come first: the
name of its entry point in the group `objcat.compaction_strategies`. A process without the package compacts nothing by itself. It cannot be
set together with `compact_order`. A property `compact_strategy.` with a name behind the dot is an option that the strategy gets."""
COMPACTION_ORDERS = ("log_bytes", "log_count", "newest")
COMPACT_PLAN_ONLY = "compact_plan_only"
"""With `true`, a write that finds a compaction due only schedules a plan. Another job executes it."""
TARGET_LOG_BYTES = "target_log_bytes"
"""The largest size of a log file, in bytes of rows in Arrow memory. The file itself is smaller, because Parquet compresses. A larger batch
becomes several files. A smaller value takes less memory for a write and makes more files."""
TARGET_LOG_BYTES_DEFAULT = 128 * 1024**2
AUTO_CLEAN = "auto_clean"
"""Whether writes clean the table in the background, by the retention that the `keep_...` properties set."""
KEEP_COMMITS = "keep_commits"
"""Automatic cleaning retains the state of the table after each of its newest commits, this many of them. If several `keep_...` properties
are set, cleaning retains what any of them retains."""
KEEP_VERSIONS = "keep_versions"
"""Automatic cleaning retains the state of the table after each of its newest commits that wrote base files, this many of them."""
KEEP_HOURS = "keep_hours"
"""Automatic cleaning retains the slots of this many hours before the newest commit. The default applies only when no other `keep_...`
property is set."""
KEEP_HOURS_DEFAULT = 168
"""The retention when no property sets one: a week."""
REFRESH_AFTER_S = "refresh_after_s"
"""`maintain` refreshes a derived table when a source has newer slots and the last refresh was this many seconds ago; 0: in each round.
Without it, only `refresh_derived` does."""
GROUP_COMMIT = "group_commit"
"""With `on`, writers that lose slots to each other commit together: one of them puts the log rows of all who wait into one slot. From the
first such slot on, older versions of objcat refuse the log. Commits of one slot have one time, and time travel cannot come between them."""
SPLIT_ABOVE_BYTES = "split_above_bytes"
"""Double the buckets of a partition when they hold more than this many bytes each, on average. Without it, writes split nothing."""
MIRRORS = "mirrors"
"""Other formats whose metadata describes each slot of the table, so that other engines read it: `iceberg`, `delta`, `iceberg,delta`, or
`none`."""
MIRRORS_KINDS = ("none", "iceberg", "delta", "iceberg,delta", "delta,iceberg")
MIRROR_ICEBERG_VERSION = "mirror_iceberg_version"
"""The version of Iceberg's format that a mirror uses. `2`: superseded rows are masked by position deletes, which every reader takes. `3`:
by deletion vectors."""
MIRROR_MODE = "mirror_mode"
"""What mirrors show. `snapshot`: the rows of a scan. `read_optimized`: base files alone, for readers without deletes."""
READ_OPTIMIZED = "read_optimized"

STATISTICS = "statistics."
"""What metadata says about a column. Write the name of the column after the dot. `values`: the least and greatest value of each file.
`none`: nothing, neither in commits, manifests and footers nor in bloom filters. It holds for files that are written from then on."""
STATISTICS_KINDS = ("values", "none")


@dataclass(frozen=True, slots=True)
class Statistics:
    """The columns whose least and greatest values a file holds, by id.

    Args:
        always: Columns that have them, however many columns come before.
        never: Columns that have them nowhere: not in entries, manifests, footers or bloom filters.
    """

    always: frozenset[int] = frozenset()
    never: frozenset[int] = frozenset()


class SchemaMode(enum.StrEnum):
    """What a write may do to the schema.

    STRICT: nothing. ADD: append columns and fields of the batch that the table lacks, as nullable. WIDEN: also make types as wide as the
    batch's, where every value survives.
    """

    STRICT = "strict"
    ADD = "add"
    WIDEN = "widen"


@dataclass(frozen=True, slots=True)
class NumberProperty:
    """A property whose value is a whole number from `least` to `most`, both included. example: a value to show in errors."""

    example: int
    least: int = 1
    most: int = 10**18 - 1


NUMBERS: Mapping[str, NumberProperty] = {
    TARGET_FILE_BYTES: NumberProperty(TARGET_FILE_BYTES_DEFAULT, least=1024, most=64 * 1024**3),
    MEMORY_INDEX_BYTES: NumberProperty(MEMORY_INDEX_BYTES_DEFAULT, least=0),
    COMPACT_AFTER_COMMITS: NumberProperty(16),
    COMPACT_AFTER_BYTES: NumberProperty(256 * 1024**2),
    COMPACT_AFTER_S: NumberProperty(3600),
    COMPACT_AFTER_LOG_PERCENT: NumberProperty(30, most=100_000),
    COMPACT_IO_BYTES_MAX: NumberProperty(10 * 1024**3),
    COMPACT_LOG_BYTES_MIN: NumberProperty(1024**2),
    COMPACT_LOG_COUNT_MIN: NumberProperty(4),
    COMPACT_PARTITIONS_NEWEST: NumberProperty(2),
    COMPACT_PARTITIONS_OLDER: NumberProperty(2),
    TARGET_LOG_BYTES: NumberProperty(TARGET_LOG_BYTES_DEFAULT, least=1024, most=4 * 1024**3),
    KEEP_COMMITS: NumberProperty(100),
    KEEP_VERSIONS: NumberProperty(3),
    KEEP_HOURS: NumberProperty(KEEP_HOURS_DEFAULT),
    SPLIT_ABOVE_BYTES: NumberProperty(1024**3),
    REFRESH_AFTER_S: NumberProperty(60, least=0),
}
PLUGINS: Mapping[str, str] = {INDEX_PLUGIN: "sqlite", COMPACT_STRATEGY: "oldest-first"}
"""Properties whose value is the name of a plug-in, with an example."""
WORDS: Mapping[str, Iterable[str]] = {
    SCHEMA_MODE: SchemaMode,
    AUTO_CLEAN: ("true", "false"),
    COMPACT_PLAN_ONLY: ("true", "false"),
    COMPACT_ORDER: COMPACTION_ORDERS,
    GROUP_COMMIT: ("on", "off"),
    MIRRORS: MIRRORS_KINDS,
    MIRROR_ICEBERG_VERSION: ("2", "3"),
    MIRROR_MODE: ("snapshot", READ_OPTIMIZED),
}
DEFAULTS: Mapping[str, str] = {
    TARGET_FILE_BYTES: str(TARGET_FILE_BYTES_DEFAULT),
    TARGET_LOG_BYTES: str(TARGET_LOG_BYTES_DEFAULT),
    MEMORY_INDEX_BYTES: str(MEMORY_INDEX_BYTES_DEFAULT),
    SCHEMA_MODE: SchemaMode.STRICT,
    COMPACT_ORDER: "log_bytes",
    COMPACT_PLAN_ONLY: "false",
    AUTO_CLEAN: "true",
    GROUP_COMMIT: "off",
    MIRRORS: "none",
    MIRROR_ICEBERG_VERSION: "2",
    MIRROR_MODE: "snapshot",
    KEEP_HOURS: str(KEEP_HOURS_DEFAULT),
}
"""The values that apply without the property. A property that is not here does nothing until it is set."""
SINCE: Mapping[str, str] = {}
"""The version that introduced a property, if it is not `FIRST_VERSION`."""
FIRST_VERSION = "0.1.0"

_SAID_AT_CREATION = ("key", "ordering", "allowed_lateness", "partition_by", "key_scope", "index", "table_type", "shared_log")
"""Settings of a table that are no properties. As a property, each would be a note without effect."""
_FAMILIES = ("keep_", "compact_")
"""Prefixes of settings. Another name with such a prefix was meant as a setting too."""
_ALIKE = 0.8
"""Similarity from which a name counts as a mistyped setting; 1 is equal."""


def check_properties(properties: Mapping[str, str]) -> None:
    """Check the values of settings. Raises InvalidInput."""
    for name, words in WORDS.items():
        if name in properties:
            one_of(properties[name], words, what=f"the property {name}")
    for name in PLUGINS:
        if name in properties:
            check_plugin_name(properties[name], what=f"the property {name}")
    for name, number in NUMBERS.items():
        said = properties.get(name)
        if said is None:
            continue
        if not said.isascii() or not said.isdigit() or len(said) > 18 or not number.least <= int(said) <= number.most:
            most = f"to {number.most:,}" if number.most < 10**18 - 1 else "up"
            raise InvalidInput(
                f"The property {name!r} is {said!r}. Give a whole number from {number.least:,} {most} as text, e.g. '{number.example}'."
            )


def check_together(properties: Mapping[str, str]) -> None:
    """Check that settings of one table do not contradict each other. Raises InvalidInput."""
    if COMPACT_PARTITIONS_NEWEST in properties and COMPACT_PARTITIONS_OLDER in properties:
        raise InvalidInput(
            f"The properties {COMPACT_PARTITIONS_NEWEST} and {COMPACT_PARTITIONS_OLDER} exclude each other. Nothing was written. "
            "Unset one of them."
        )
    if COMPACT_STRATEGY in properties and COMPACT_ORDER in properties:
        raise InvalidInput(
            f"The properties {COMPACT_STRATEGY} and {COMPACT_ORDER} exclude each other: the strategy says which file groups come first. "
            "Nothing was written. Unset one of them."
        )


def check_index_plugin(properties: Mapping[str, str], *, reads_files: bool) -> None:
    """Check that a table with an index of another package looks keys up in files. Raises InvalidInput."""
    if INDEX_PLUGIN in properties and not reads_files:
        raise InvalidInput(
            f"The property {INDEX_PLUGIN} is for tables with SimpleIndex or BloomIndex. Nothing was written. Leave it out, or create the "
            "table with index=objcat.SimpleIndex()."
        )


def check_statistics(properties: Mapping[str, str], columns: Sequence[str]) -> None:
    """Check the `statistics.` properties against the names of the columns. Raises InvalidInput."""
    for name, said in properties.items():
        if name.startswith(STATISTICS):
            column = name.removeprefix(STATISTICS)
            if column not in columns:
                raise InvalidInput(f"The property {name!r} names no column of the table ({nearest(column, columns)}). Nothing was written.")
            one_of(said, STATISTICS_KINDS, what=f"the property {name}")


def mirrors_of(properties: Mapping[str, str]) -> tuple[str, ...]:
    """The formats of the mirrors that properties name, sorted."""
    return tuple(sorted(name for name in properties.get(MIRRORS, "none").split(",") if name != "none"))


def silenced(properties: Mapping[str, str]) -> frozenset[str]:
    """The names of the columns without statistics."""
    return frozenset(name.removeprefix(STATISTICS) for name, said in properties.items() if name.startswith(STATISTICS) and said == "none")


def check_names(names: Iterable[str]) -> None:
    """Refuse the name of a note that looks like a mistyped setting, since it would have no effect. Raises InvalidInput."""
    for name in names:
        if name in NUMBERS or name in WORDS or name in PLUGINS:
            continue
        near = _nearest(name)
        if near is not None:
            which = ", which is no property but is given when a table is created" if near in _SAID_AT_CREATION else ""
            raise InvalidInput(
                f"The property {name!r} would be a note without effect. Nothing was written. Did you mean {near!r}{which}? "
                f"Call a note of your own {_noted(name)!r}."
            )


def _nearest(name: str) -> str | None:
    """The setting that a name looks like. None for a user's own name; a name with a prefix of its own is one."""
    own = name.casefold().removeprefix("objcat.")
    if "." in own:
        return None
    known = {_letters(setting): setting for setting in (*NUMBERS, *WORDS, *PLUGINS, *_SAID_AT_CREATION)}
    family = re.sub(r"[^a-z0-9]", "_", own).startswith(_FAMILIES)
    close = difflib.get_close_matches(_letters(own), known, n=1, cutoff=0.0 if family else _ALIKE)
    return known[close[0]] if close else None


def _letters(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.casefold())


def _noted(name: str) -> str:
    return f"notes.{name.casefold().removeprefix('objcat.')}"
