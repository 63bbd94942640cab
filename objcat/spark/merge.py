"""Merge-on-read as one Catalyst plan over Parquet: base rows that no log row beats, and the log rows that nothing beats.

The rules are those of `objcat.storage.merge`. Rows of one key count in the order of their *rank*: a base row's is -1, a log row's that of
its object, which holds a key at most once. In commit order a row is beaten by every row of its key with a greater rank. With an ordering
column, a *barrier* (a delete without an ordering value) beats every row of a smaller rank; of what is left, the greater ordering value
beats, of equal ones the greater rank. A row that wins and is a delete ends its key.

Few log rows: their keys are broadcast once, and each side drops what they beat; Catalyst reuses the broadcast, and filters on keys reach
both sides. Many: the newest log row of every key is found by a window, and joined with the base by a shuffle.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from objcat.storage.merge import OP_COLUMN, OP_DELETE, OP_UPSERT

RANK = "_objcat_rank"
PART = "_objcat_part"
ORDER = "_objcat_order"
_THEIR_ORDER = "_objcat_their_order"
_THEIR_RANK = "_objcat_their_rank"
_LAST_BARRIER = "_objcat_last_barrier"
_BY_LOG = "_objcat_by_log"
_TURN = "_objcat_turn"

BROADCAST_BYTES_MAX = 256 * 1024**2
"""Estimated bytes of log keys that are broadcast."""
PAIRWISE_OBJECTS_MAX = 8
"""Log objects whose rows are compared one by one: a key that is in all of them costs the square of their number."""
HASHED_ROWS_MAX = 2_000_000
"""Log rows of one shuffle partition that are held in memory by a hash join."""


@dataclass(frozen=True, slots=True)
class Rows:
    """What is merged. Both frames have the columns of the result, `key`, RANK, and with an ordering column ORDER; logs `_objcat_op` too.

    columns: of the result. key: columns that identify a row. packed: the key as one whole number, where that is possible. has_ordering:
    else commit order. barriers: whether there may be any. objects, log_rows: how many. layout: the number of buckets of the whole key that
    the base has, None where Spark cannot rely on one. width: partitions of a shuffle. spread: buckets, and the columns that choose them, to
    which the log rows that are left are dealt, so that Spark sees one layout of all rows; None to leave them where they are read.
    """

    base: DataFrame | None
    logs: DataFrame
    columns: tuple[str, ...]
    key: tuple[str, ...]
    packed: Column | None
    has_ordering: bool
    barriers: bool
    objects: int
    log_rows: int
    layout: int | None
    width: int
    spread: tuple[int, tuple[str, ...]] | None = None

    @property
    def is_small(self) -> bool:
        """Whether the keys of the log rows can be broadcast."""
        bytes_of_row = 64 if self.packed is not None or len(self.key) == 1 else 64 + 32 * len(self.key)
        return self.log_rows * (bytes_of_row + (24 if self.has_ordering else 0)) <= BROADCAST_BYTES_MAX


def merged(rows: Rows) -> list[DataFrame]:
    """Frames with the columns of the result that together hold the merged rows."""
    return _broadcast(rows) if rows.is_small else _shuffled(rows)


# ---- few log rows ------------------------------------------------------------------------------------------------


def _broadcast(rows: Rows) -> list[DataFrame]:
    keys = _Keys(rows)
    base, logs = rows.base, rows.logs
    if rows.barriers:
        barriers = keys.of(_barriers(logs))
        logs = keys.anti(logs, barriers, _is_later)
        base = None if base is None else keys.anti(base, barriers, _is_later)
    pairwise = rows.objects <= PAIRWISE_OBJECTS_MAX
    beaters = keys.of(logs) if pairwise else keys.newest(logs)
    if rows.objects == 1:
        winners = logs
    elif pairwise:
        winners = keys.anti(logs, beaters, _beats if rows.has_ordering else _is_later)
    else:
        winners = _newest(logs, rows)
    winners = winners.where(F.col(OP_COLUMN) == OP_UPSERT)
    if base is None:
        return [_spread(winners.select(*rows.columns), rows)]
    kept = keys.anti(base, beaters, _beats_base if rows.has_ordering else _is_later)
    if rows.has_ordering:
        late = keys.semi(base, beaters, _is_beaten_by_base)
        winners = keys.anti(winners, keys.of(late), lambda: F.col(_THEIR_ORDER) > F.col(ORDER))
    return [kept.select(*rows.columns), _spread(winners.select(*rows.columns), rows)]


def _spread(winners: DataFrame, rows: Rows) -> DataFrame:
    return winners if rows.spread is None else winners.repartition(rows.spread[0], *rows.spread[1])


def _is_later() -> Column:
    """Whether the other row counts after this one."""
    return F.col(_THEIR_RANK) > F.col(RANK)


def _beats() -> Column:
    """Whether another log row of the key beats this one, of rows that no barrier beats: a barrier among them is the last, and loses to
    all."""
    mine, theirs = F.col(ORDER), F.col(_THEIR_ORDER)
    return (theirs > mine) | ((theirs == mine) & _is_later()) | (mine.isNull() & theirs.isNotNull())


# These two say more than they must, about ranks, and let Catalyst infer less, of nulls: so it sees that one broadcast serves all.
def _beats_base() -> Column:
    return F.coalesce(F.col(_THEIR_ORDER) >= F.col(ORDER), F.lit(True)) & _is_later()


def _is_beaten_by_base() -> Column:
    return F.coalesce(F.col(_THEIR_ORDER) < F.col(ORDER), F.lit(False)) & _is_later()


def _barriers(logs: DataFrame) -> DataFrame:
    return logs.where((F.col(OP_COLUMN) == OP_DELETE) & F.col(ORDER).isNull())


class _Keys:
    """Joins by key: with the keys of some rows, under names of their own, so that no column is meant by two."""

    def __init__(self, rows: Rows) -> None:
        self._terms = [rows.packed] if rows.packed is not None else [F.col(name) for name in rows.key]
        self._names = [f"_objcat_key_{i}" for i in range(len(self._terms))]
        self._decides = [*([(ORDER, _THEIR_ORDER)] if rows.has_ordering else []), (RANK, _THEIR_RANK)]

    def of(self, rows: DataFrame) -> DataFrame:
        """The keys of rows, with what decides which row wins."""
        keys = [term.alias(name) for term, name in zip(self._terms, self._names, strict=True)]
        return rows.select(*keys, *(F.col(mine).alias(theirs) for mine, theirs in self._decides))

    def newest(self, logs: DataFrame) -> DataFrame:
        """Each key once, with the greatest of what decides."""
        return self.of(logs).groupBy(*self._names).agg(*(F.max(theirs).alias(theirs) for _, theirs in self._decides))

    def anti(self, rows: DataFrame, keys: DataFrame, beats: Callable[[], Column]) -> DataFrame:
        """Those that no row of `keys` beats."""
        return rows.join(F.broadcast(keys), self._same() & beats(), "left_anti")

    def semi(self, rows: DataFrame, keys: DataFrame, loses: Callable[[], Column]) -> DataFrame:
        """Those to which a row of `keys` loses."""
        return rows.join(F.broadcast(keys), self._same() & loses(), "left_semi")

    def _same(self) -> Column:
        return reduce(Column.__and__, (term == F.col(name) for term, name in zip(self._terms, self._names, strict=True)))


# ---- many log rows -----------------------------------------------------------------------------------------------


def _shuffled(rows: Rows) -> list[DataFrame]:
    logs = rows.logs if rows.layout is None else rows.logs.repartition(rows.layout, *rows.key)
    if rows.barriers:
        is_barrier = (F.col(OP_COLUMN) == OP_DELETE) & F.col(ORDER).isNull()
        last = F.max(F.when(is_barrier, F.col(RANK))).over(Window.partitionBy(*rows.key))
        logs = logs.withColumn(_LAST_BARRIER, last).where(F.col(_LAST_BARRIER).isNull() | (F.col(RANK) >= F.col(_LAST_BARRIER)))
    winners = _newest(logs, rows)
    if rows.base is None:
        return [winners.where(F.col(OP_COLUMN) == OP_UPSERT).select(*rows.columns)]
    hint = "shuffle_hash" if rows.log_rows <= HASHED_ROWS_MAX * rows.width else "merge"
    theirs = winners.select(*(F.col(name).alias(f"_objcat_log_{name}") for name in winners.columns)).hint(hint)
    same = reduce(Column.__and__, (F.col(name) == F.col(f"_objcat_log_{name}") for name in rows.key))
    if not rows.has_ordering:
        kept = rows.base.join(theirs, same, "left_anti")
        return [kept.select(*rows.columns), winners.where(F.col(OP_COLUMN) == OP_UPSERT).select(*rows.columns)]
    both = rows.base.join(theirs, same, "full_outer")
    order = F.col(f"_objcat_log_{ORDER}")
    barrier = F.col(f"_objcat_log_{_LAST_BARRIER}").isNotNull() if rows.barriers else F.lit(False)
    has_log, has_base = F.col(f"_objcat_log_{RANK}").isNotNull(), F.col(RANK).isNotNull()
    by_log = has_log & (~has_base | barrier | F.coalesce(order >= F.col(ORDER), F.lit(True)))
    both = both.withColumn(_BY_LOG, by_log).where(~F.col(_BY_LOG) | (F.col(f"_objcat_log_{OP_COLUMN}") == OP_UPSERT))
    return [
        both.select(*(F.when(F.col(_BY_LOG), F.col(f"_objcat_log_{name}")).otherwise(F.col(name)).alias(name) for name in rows.columns))
    ]


def _newest(logs: DataFrame, rows: Rows) -> DataFrame:
    """The log row of each key that beats the others. A barrier has no ordering value, and so loses to what came after it."""
    greatest = [F.col(ORDER).desc_nulls_last()] if rows.has_ordering else []
    window = Window.partitionBy(*rows.key).orderBy(*greatest, F.col(RANK).desc())
    return logs.withColumn(_TURN, F.row_number().over(window)).where(F.col(_TURN) == 1).drop(_TURN)
