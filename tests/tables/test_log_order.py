"""What bounds of files tell of event-time order, before a row is read."""

from __future__ import annotations

import pytest

from objcat.metadata.files import Adoption, BaseFile, FileGroup, LogObject, LogSlice
from objcat.metadata.ordering import OrderingBounds
from objcat.planning.event_time import UNKNOWN, LogOrder, greatest_of, log_order
from objcat.timeline.entry import FileGroupId, Txn

Span = tuple[int, int]
GROUP = FileGroupId("", 0, 2)


def bounds(span: Span | None, *, has_nulls: bool = False) -> OrderingBounds:
    if span is None:
        return OrderingBounds(None, None, is_whole=True, has_nulls=has_nulls)
    return OrderingBounds(span[:1], span[1:], is_whole=True, has_nulls=has_nulls)


def order_of(base: OrderingBounds | None, *logs: OrderingBounds | None, retained: int = 0, adopted: Adoption | None = None) -> LogOrder:
    """Of one file group. retained: how many of its first log objects are deletes that its base file came with."""
    files = {f"log-{number}": one for number, one in enumerate(logs)} | {"base": base}
    parts = tuple(
        LogSlice(
            slot=3 if number < retained else 5 + number,
            object=LogObject(path=f"log-{number}", bytes=1, rows=1, row_group_rows=1, slices=()),
            start=0,
            end=1,
            group_id=GROUP,
            named_at=4,
        )
        for number in range(len(logs))
    )
    file = BaseFile(path="base", bytes=1, rows=1, group_id=GROUP, adopted=adopted)
    return log_order([FileGroup(GROUP, base=file, as_of=3, logs=parts)], files.__getitem__)


@pytest.mark.parametrize(
    ("base", "logs", "in_order", "wins"),
    [
        ((0, 10), [(10, 12), (12, 12), (13, 20)], True, True),
        ((0, 10), [(9, 12)], False, False),
        ((0, 10), [(11, 15), (14, 20)], False, True),
        ((0, 10), [(11, 15), None, (15, 20)], True, True),
        ((0, 10), [None], True, True),
    ],
)
def test_rows_in_order_are_in_commit_order(base: Span, logs: list[Span | None], in_order: bool, wins: bool) -> None:
    found = order_of(bounds(base), *(bounds(one, has_nulls=one is None) for one in logs))
    assert (found.is_commit_order, found.wins_over_base, found.limit) == (in_order, wins, bounds(base))


def test_what_is_not_known_of_a_base_file_leaves_all_unknown() -> None:
    later = bounds((20, 30))
    assert order_of(None, later) == UNKNOWN
    assert order_of(bounds((0, 10), has_nulls=True), later) == UNKNOWN
    assert order_of(bounds((0, 10)), later, adopted=Adoption(txn=Txn("20261121T000000000Z-0000000000000001"))) == UNKNOWN
    assert order_of(bounds((0, 10)), later, None) == LogOrder(limit=bounds((0, 10)))


def test_deletes_that_a_compaction_retained_are_compared_with_later_rows_only() -> None:
    base = bounds((0, 10))
    assert order_of(base, bounds((5, 8)), bounds((10, 12)), retained=1) == LogOrder(True, True, base)
    assert order_of(base, bounds((5, 18)), bounds((10, 12)), retained=1) == LogOrder(False, True, base)


def test_limits_of_several_columns_are_cut_to_those_that_all_have() -> None:
    two = OrderingBounds((0, 0), (5, 7), is_whole=True, has_nulls=False)
    one = OrderingBounds((0,), (4,), is_whole=False, has_nulls=False)
    found = greatest_of([two, one])
    assert found is not None
    assert (found.greatest, found.is_whole) == ((5,), False)
    assert greatest_of([bounds(None)]) is None
