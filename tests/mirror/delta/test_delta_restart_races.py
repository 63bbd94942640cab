"""A restart and another process, put against put: at no time is any version read wrongly, also if the process that restarts dies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import count
from pathlib import Path

import deltalake
import pyarrow as pa
import pytest

from fileio.registry import open_store
from fileio.testing.faults import Crash, Request
from objcat.mirror.delta.actions import checkpoint_key, commit_key, hint_key
from objcat.mirror.delta.features import NEEDS_CHECKPOINT
from objcat.mirror.model import MirrorSlotTaken
from tests.mirror.delta.restarting import DEATHS, NEWEST, Other, Refused, Written, follow, replay, restart_at, restarting, versions
from tests.mirror.delta.synthetic import History, read_by_deltalake, rows_of


@pytest.fixture
def written(tmp_path: Path) -> Written:
    return Written(History(open_store(tmp_path.as_uri())))


def check_each_version(table: History, counts: Counter[str]) -> None:
    """Whatever version there is reads exactly its slot, or is refused."""
    for slot in versions(table):
        try:
            found = replay(table, slot)
        except Refused as error:
            counts["needs its checkpoint" if NEEDS_CHECKPOINT in str(error) else "refused"] += 1
            continue
        assert found == table.states[slot], f"version {slot}"
        counts["read"] += 1


CASES: dict[str, tuple[int, Other]] = {
    "nothing before, and the other begins one slot below": (0, restart_at(NEWEST - 1)),
    "nothing before, and the other begins below and goes on": (0, restart_at(4, 5, 6)),
    "a gap that the other fills": (4, follow(4, 5, 6)),
    "a gap that the other fills in part": (4, follow(4, 5)),
    "a gap, and the other begins again one slot below": (4, restart_at(NEWEST - 1)),
    "one slot is missing": (6, follow(6)),
    "the slot before is there": (7, follow()),
    "the other is first": (7, follow(7)),
    "the other is first, by a restart": (3, restart_at(NEWEST)),
}
"""How many slots were written before, and what another process does in the middle of a restart."""


def begun(name: str, slots: int) -> Written:
    written = Written(History(open_store(f"memory://{name}")))
    if slots:
        written.write(*range(slots))
    return written


def at_request(number: int, do: Callable[[], object], table: History, counts: Counter[str]) -> tuple[Callable[[Request], None], list[int]]:
    """A hook that checks everything before each request, and does something before one of them; and how many are left until then."""
    left = [number]

    def meanwhile(_: Request) -> None:
        check_each_version(table, counts)
        left[0] -= 1
        if left[0] == -1:
            with suppress(MirrorSlotTaken, Crash):
                do()
            check_each_version(table, counts)

    return meanwhile, left


def check_goes_on(written: Written, counts: Counter[str]) -> None:
    """Any process goes on from what there is, and all of it can be read then."""
    check_each_version(written.table, counts)
    mirror = written.mirror()
    newest = mirror.newest()
    if newest is None or newest.slot < NEWEST:
        mirror.write(written.whole(NEWEST))
    last: Counter[str] = Counter()
    check_each_version(written.table, last)
    assert versions(written.table)[-1] == NEWEST and last["read"] == len(versions(written.table))
    assert not last["refused"] and not last["needs its checkpoint"], last


@pytest.mark.parametrize("dies", DEATHS)
@pytest.mark.parametrize("case", CASES)
def test_another_process_between_any_two_requests_of_a_restart(tmp_path: Path, case: str, dies: str) -> None:
    slots, other = CASES[case]
    counts: Counter[str] = Counter()
    for moment in count():
        written = begun(f"{tmp_path.name}-{moment}", slots)
        hook, left = at_request(moment, other(written), written.table, counts)
        with suppress(Crash, MirrorSlotTaken):
            restarting(written, dies, hook).write(written.whole(NEWEST))
        check_goes_on(written, counts)
        if left[0] >= 0:
            break
    assert moment > 4 and counts["read"]


@pytest.mark.parametrize("dies", DEATHS)
@pytest.mark.parametrize("slots", [0, 4])
def test_a_restart_between_any_two_requests_of_a_restart_one_slot_below(tmp_path: Path, slots: int, dies: str) -> None:
    counts: Counter[str] = Counter()
    for moment in count():
        written = begun(f"{tmp_path.name}-{moment}", slots)
        checks, _ = at_request(-1, lambda: None, written.table, counts)
        above = restarting(written, dies, checks)
        hook, left = at_request(moment, partial(above.write, written.whole(NEWEST)), written.table, counts)
        with suppress(MirrorSlotTaken):
            restarting(written, "never", hook).write(written.whole(NEWEST - 1))
        check_goes_on(written, counts)
        if left[0] >= 0:
            break
    assert moment > 4 and counts["read"]


def test_a_restart_upon_a_version_needs_no_checkpoint(written: Written) -> None:
    written.write(*range(NEWEST))
    with pytest.raises(Crash):
        restarting(written, "before its checkpoint", lambda _: None).write(written.whole(NEWEST))
    assert not written.table.fileio.exists(checkpoint_key(written.table.place, NEWEST))
    assert read_by_deltalake(written.table.url) == written.table.rows_at[NEWEST]


def commit_of(written: Written, slot: int) -> bytes:
    """The commit that a process which follows slot by slot would put."""
    other = Written(History(open_store(f"memory://{written.table.url}-{slot}")))
    other.write(*range(slot + 1))
    return other.table.fileio.read(commit_key(other.table.place, slot))


def test_a_restart_upon_none_is_refused_until_its_checkpoint_is_there(written: Written) -> None:
    written.write(0, 1, 2)
    with pytest.raises(Crash):
        restarting(written, "before its checkpoint", lambda _: None).write(written.whole(NEWEST))
    counts: Counter[str] = Counter()
    check_each_version(written.table, counts)
    assert counts == {"read": 3, "refused": 1}
    with pytest.raises(Exception, match=r"."):
        read_by_deltalake(written.table.url)
    # Where the versions below come later, a reader has all that it needs, but for the feature.
    for number in range(3, NEWEST):
        written.table.fileio.put(commit_key(written.table.place, number), commit_of(written, number))
    with pytest.raises(Exception, match=NEEDS_CHECKPOINT):
        read_by_deltalake(written.table.url)
    newest = written.mirror().newest()
    assert newest is not None and newest.slot == NEWEST
    assert read_by_deltalake(written.table.url) == written.table.rows_at[NEWEST]
    protocol = deltalake.DeltaTable(written.table.url).protocol()
    assert NEEDS_CHECKPOINT not in [*(protocol.reader_features or ()), *(protocol.writer_features or ())]


def test_a_reader_that_slept_through_an_erasure_gets_no_row_twice(written: Written) -> None:
    """The commit of the restart has lost its removes since, so it must not be applied to the version that the reader knows."""
    written.write(*range(NEWEST))
    known = deltalake.DeltaTable(written.table.url)
    mirror = written.mirror()
    mirror.write(written.whole(NEWEST))
    assert mirror.forget_before(NEWEST) > 0
    told = ""
    try:
        known.update_incremental()
    except Exception as error:  # noqa: BLE001 - whatever deltalake raises
        told = str(error)
    found = pa.table(deltalake.QueryBuilder().register("t", known).execute("SELECT * FROM t").read_all()) if not told else None
    assert NEEDS_CHECKPOINT in told or (found is not None and rows_of(found) == written.table.rows_at[NEWEST]), told
    assert read_by_deltalake(written.table.url) == written.table.rows_at[NEWEST]
    assert written.table.fileio.exists(hint_key(written.table.place))
