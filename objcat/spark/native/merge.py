"""Merge-on-read as one Catalyst plan over Parquet: base rows that no log row overrides, and the winning log rows.

The rules are those of `objcat.datafile.merge`. Rows of one key count in the order of their *rank*: -1 for a base row, the rank of its
object (which holds a key at most once), or one of its own, for a log row. In commit order a row loses to every row of its key with a
greater rank. With an ordering column, a *barrier* (a delete without an ordering value) wins over every row of a smaller rank. Of the rest,
the greater ordering value wins, and of equal ones the greater rank. A winning delete ends its key.

Few log rows: their keys are broadcast once, and each side drops the rows that lose; Catalyst reuses the broadcast, and filters on keys
reach both sides. Where keys are whole numbers close together, in commit order, our optimizer rule (`ObjcatBits.java`) recognises these
joins by their column names, and uses a bit set instead. Many log rows: a window finds the newest log row of every key, and a shuffle joins
it with the base.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from objcat.datafile.merge import OP_COLUMN, OP_DELETE, OP_UPSERT
from objcat.spark.native.query import Hint, Query

RANK = "_objcat_rank"
PART = "_objcat_part"
ORDER = "_objcat_order"
_THEIR_ORDER = "_objcat_their_order"
_THEIR_RANK = "_objcat_their_rank"
_LAST_BARRIER = "_objcat_last_barrier"
_BY_LOG = "_objcat_by_log"
_TURN = "_objcat_turn"

SURE = "true"
"""For `MergeRows.sure`: all log rows."""
BROADCAST_BYTES_MAX = 256 * 1024**2
"""Estimated bytes of log keys that are broadcast."""
PAIRWISE_OBJECTS_MAX = 8
"""Log objects whose rows are compared pairwise: a key that is in all of them costs the square of their number."""
HASHED_ROWS_MAX = 2_000_000
"""Log rows of one shuffle partition that a hash join holds in memory."""


@dataclass(frozen=True, slots=True)
class MergeRows:
    """What is merged. Both sides have the columns of the result, `key`, RANK, and with an ordering column ORDER; logs `_objcat_op` too.

    Attributes:
        columns: of the result.
        key: columns that identify a row.
        packed: SQL for the key as one whole number, where possible.
        has_ordering: otherwise commit order.
        barriers: whether there may be any.
        objects, log_rows: how many there are.
        layout: the number of buckets of the whole key that the base has; None where Spark cannot rely on one.
        width: gives the partitions of a shuffle.
        spread: buckets, and the columns that choose them, to which remaining log rows are distributed, so that Spark sees one layout of all
            rows; None to leave them where they are read.
        dense: whether keys are whole numbers so close together that `ObjcatBits.java` replaces the joins by a bit set.
        sure: SQL that tells the log rows that win over the base row of their key whatever it holds; all others have an ordering value.
            None: not known of any.
    """

    base: Query | None
    logs: Query
    columns: tuple[str, ...]
    key: tuple[str, ...]
    packed: str | None
    has_ordering: bool
    barriers: bool
    objects: int
    log_rows: int
    layout: int | None
    width: Callable[[], int]
    spread: tuple[int, tuple[str, ...]] | None = None
    dense: bool = False
    sure: str | None = None

    @property
    def is_small(self) -> bool:
        """Whether the keys of the log rows can be broadcast."""
        if self.dense:
            return self.log_rows * 32 <= BROADCAST_BYTES_MAX
        bytes_of_row = 64 if self.packed is not None or len(self.key) == 1 else 64 + 32 * len(self.key)
        return self.log_rows * (bytes_of_row + (24 if self.has_ordering else 0)) <= BROADCAST_BYTES_MAX


def merged(rows: MergeRows) -> list[Query]:
    """Queries with the columns of the result that together hold the merged rows."""
    return _broadcast(rows) if rows.is_small else _shuffled(rows)


# ---- few log rows ------------------------------------------------------------------------------------------------


def _broadcast(rows: MergeRows) -> list[Query]:
    keys = _MergeKeys(rows, "_objcat_key")
    # By name, the rule recognises that keys are compared with those of the same rows.
    own = _MergeKeys(rows, "_objcat_own_key") if rows.dense else keys
    base, logs = rows.base, rows.logs
    if rows.barriers:
        barriers = keys.of(logs.where(_IS_BARRIER))
        logs = keys.anti(logs, barriers, _IS_LATER)
        base = None if base is None else keys.anti(base, barriers, _IS_LATER)
    pairwise = rows.dense or rows.objects <= PAIRWISE_OBJECTS_MAX
    log_keys = keys.of(logs) if pairwise else keys.newest(logs)
    if rows.objects == 1:
        winners = logs
    elif pairwise:
        winners = own.anti(logs, own.of(logs), _SUPERSEDES if rows.has_ordering else _IS_LATER)
    else:
        winners = _newest(logs, rows)
    winners = winners.where(_EXISTS)
    if base is None or rows.base is None:
        return [_spread(winners, rows)]
    if not rows.has_ordering:
        kept = keys.anti(base, log_keys, _IS_LATER)
    elif rows.sure is None:
        kept = keys.anti(base, log_keys, _SUPERSEDES_BASE)
        winners = _without_older(winners, base, log_keys, keys)
    else:
        # By the key alone, without a look at ordering values; barriers are among them.
        kept = keys.anti(rows.base, keys.of(rows.logs.where(rows.sure)), _IS_LATER)
        if rows.sure != SURE:
            doubtful = keys.of(rows.logs.where(f"NOT ({rows.sure})"))
            kept = keys.anti(kept, doubtful, _SUPERSEDES_BASE)
            winners = _without_older(winners, base, doubtful, keys)
    return [kept.selected(rows.columns), _spread(winners, rows)]


def _without_older(winners: Query, base: Query, log_keys: Query, keys: _MergeKeys) -> Query:
    """The winning log rows that no base row beats. base: without the rows that a barrier ends. log_keys: of all that one may beat."""
    newer = keys.semi(base, log_keys, _IS_OLDER_THAN_BASE)
    return keys.anti(winners, keys.of(newer), f"{_THEIR_ORDER} > {ORDER}")


def _spread(winners: Query, rows: MergeRows) -> Query:
    winners = winners.selected(rows.columns)
    return winners if rows.spread is None else winners.dealt(*rows.spread, for_layout=True)


_EXISTS = f"{OP_COLUMN} = {OP_UPSERT}"
_IS_BARRIER = f"{OP_COLUMN} = {OP_DELETE} AND {ORDER} IS NULL"
_IS_LATER = f"{_THEIR_RANK} > {RANK}"
_SUPERSEDES = f"({_THEIR_ORDER} > {ORDER} OR {_THEIR_ORDER} = {ORDER} AND {_IS_LATER} OR {ORDER} IS NULL AND {_THEIR_ORDER} IS NOT NULL)"
"""Whether another log row of the key wins over this one, among rows that no barrier overrides. A barrier among them is last, and loses to
all."""
# These two say more about ranks than needed, so that Catalyst infers less about nulls and sees that one broadcast serves all.
_SUPERSEDES_BASE = f"coalesce({_THEIR_ORDER} >= {ORDER}, true) AND {_IS_LATER}"
_IS_OLDER_THAN_BASE = f"coalesce({_THEIR_ORDER} < {ORDER}, false) AND {_IS_LATER}"


class _MergeKeys:
    """Joins by key with the keys of some rows, under names of their own, so that no column is ambiguous."""

    def __init__(self, rows: MergeRows, name: str) -> None:
        self._terms = [rows.packed] if rows.packed is not None else list(rows.key)
        self._names = [f"{name}_{i}" for i in range(len(self._terms))]
        self._decides = [*([(ORDER, _THEIR_ORDER)] if rows.has_ordering else []), (RANK, _THEIR_RANK)]
        self._same = " AND ".join(f"{term} = {name}" for term, name in zip(self._terms, self._names, strict=True))

    def of(self, rows: Query) -> Query:
        """The keys of rows, with the values that decide which row wins."""
        keys = zip(self._terms, self._names, strict=True)
        return rows.selected(f"{mine} AS {theirs}" for mine, theirs in (*keys, *self._decides))

    def newest(self, logs: Query) -> Query:
        """Each key once, with the greatest of these values."""
        return self.of(logs).grouped(self._names, [f"max({theirs}) AS {theirs}" for _, theirs in self._decides])

    def anti(self, rows: Query, keys: Query, beats: str) -> Query:
        """The rows that win over all of `keys`."""
        return rows.joined(keys, f"{self._same} AND {beats}", "left_anti", "broadcast")

    def semi(self, rows: Query, keys: Query, loses: str) -> Query:
        """The rows that lose to a row of `keys`."""
        return rows.joined(keys, f"{self._same} AND {loses}", "left_semi", "broadcast")


# ---- many log rows -----------------------------------------------------------------------------------------------


def _shuffled(rows: MergeRows) -> list[Query]:
    logs = rows.logs if rows.layout is None else rows.logs.dealt(rows.layout, rows.key)
    columns = [*dict.fromkeys((*rows.columns, *rows.key, RANK, OP_COLUMN, *([ORDER] if rows.has_ordering else [])))]
    if rows.barriers:
        last = f"max(CASE WHEN {_IS_BARRIER} THEN {RANK} END) OVER (PARTITION BY {', '.join(rows.key)}) AS {_LAST_BARRIER}"
        logs = logs.shaped(["*", last], f"{_LAST_BARRIER} IS NULL OR {RANK} >= {_LAST_BARRIER}")
        columns.append(_LAST_BARRIER)
    winners = _newest(logs, rows)
    if rows.base is None:
        return [winners.shaped(_EXISTS, rows.columns)]
    hint: Hint = "shuffle_hash" if rows.log_rows <= HASHED_ROWS_MAX * rows.width() else "merge"
    theirs = winners.selected(f"{name} AS {_log(name)}" for name in columns)
    same = " AND ".join(f"{name} = {_log(name)}" for name in rows.key)
    if not rows.has_ordering or rows.sure == SURE:
        kept = rows.base.joined(theirs, same, "left_anti", hint)
        return [kept.selected(rows.columns), winners.shaped(_EXISTS, rows.columns)]
    barrier = f"{_log(_LAST_BARRIER)} IS NOT NULL" if rows.barriers else "false"
    by_log = f"{_log(RANK)} IS NOT NULL AND ({RANK} IS NULL OR {barrier} OR coalesce({_log(ORDER)} >= {ORDER}, true)) AS {_BY_LOG}"
    both = rows.base.joined(theirs, same, "full_outer", hint)
    chosen = [f"CASE WHEN {_BY_LOG} THEN {_log(name)} ELSE {name} END AS {name}" for name in rows.columns]
    return [both.shaped(["*", by_log], f"NOT {_BY_LOG} OR {_log(OP_COLUMN)} = {OP_UPSERT}", chosen)]


def _log(name: str) -> str:
    """The name of a log column next to that of a base column."""
    return f"_objcat_log_{name}"


def _newest(logs: Query, rows: MergeRows) -> Query:
    """The winning log row of each key. A barrier has no ordering value, so it loses to later rows."""
    greatest = f"{ORDER} DESC NULLS LAST, " if rows.has_ordering else ""
    turn = f"row_number() OVER (PARTITION BY {', '.join(rows.key)} ORDER BY {greatest}{RANK} DESC) AS {_TURN}"
    return logs.shaped(["*", turn], f"{_TURN} = 1")
