"""Where event-time order is commit order: pure functions over the bounds of ordering values in files.

Spark plans a merge before it reads a row, so files decide what rows decide in `objcat.tasks.scan`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from objcat.metadata.files import FileGroup
from objcat.metadata.ordering import OrderingBounds

BoundsOf = Callable[[str], OrderingBounds | None]
"""The bounds of a file by its path; None where they are not known."""


@dataclass(frozen=True, slots=True)
class LogOrder:
    """What is known of the ordering values in the log rows of some file groups.

    Args:
        is_commit_order: Whether no row has a lesser value than an earlier one of its file group. Then the later row of a key wins.
        wins_over_base: Whether every log row wins over the base row of its key.
        limit: The greatest values of base files: a log row wins over a base row if its own are not below. None: not known, so that all are
            compared.
        stale: By the path of a log object, the numbers of its rows that have a lesser value than an earlier row of their key. All else is
            said of the other rows.
    """

    is_commit_order: bool = False
    wins_over_base: bool = False
    limit: OrderingBounds | None = None
    stale: Mapping[str, Sequence[int]] = field(default_factory=dict)


UNKNOWN = LogOrder()


def log_order(groups: Iterable[FileGroup], bounds_of: BoundsOf) -> LogOrder:
    """How the log rows of file groups lie to their base rows, and to each other, by the bounds of their files."""
    listed = list(groups)
    limits: list[OrderingBounds] = []
    for group in listed:
        if group.base is None:
            continue
        of_base = None if group.is_adopted else bounds_of(group.base.path)
        if of_base is None or of_base.has_nulls:
            return UNKNOWN
        limits.append(of_base)
    found = [_of_group(group, bounds_of) for group in listed]
    return LogOrder(
        is_commit_order=all(in_order for in_order, _ in found),
        wins_over_base=all(wins for _, wins in found),
        limit=greatest_of(limits),
    )


def _of_group(group: FileGroup, bounds_of: BoundsOf) -> tuple[bool, bool]:
    """Whether the rows of a file group are in commit order, and whether its log rows win over its base rows, whose bounds are known."""
    of_base = None if group.base is None else bounds_of(group.base.path)
    before = [] if of_base is None else [of_base]
    in_order = wins = True
    for part in group.logs:
        known = bounds_of(part.object.path)
        if known is None:
            return False, wins and of_base is None
        # A compaction leaves no row of a key whose delete it retains.
        is_retained = part.slot <= group.as_of
        wins &= is_retained or of_base is None or known.follow(of_base)
        in_order &= all(known.follow(one) for one in before if not (is_retained and one is of_base))
        before.append(known)
    return in_order, wins


def is_in_order(group: FileGroup, bounds_of: BoundsOf) -> bool:
    """Whether bounds say that no row of a file group has a lesser value than an earlier one."""
    return _of_group(group, bounds_of)[0]


def greatest_of(limits: Sequence[OrderingBounds]) -> OrderingBounds | None:
    """Bounds whose greatest values are not below those of any of these. None where none of these has values."""
    some = [one.greatest for one in limits if one.greatest is not None]
    if not some:
        return None
    count = min(map(len, some))
    is_whole = all(one.is_whole for one in limits) and all(len(values) == count for values in some)
    first = next(one for one in limits if one.greatest is not None)
    return replace(first, greatest=max(values[:count] for values in some), is_whole=is_whole)
