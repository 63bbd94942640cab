"""The commit loop through its public face: slots are dense, one outcome for each txn, lost responses are settled, conflicts are certain."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import replace

import msgspec
import pytest

from fileio.contract import Buffer, Capabilities, Create, ObjectMeta, PutMode, PutOutcome, Written
from fileio.memory import MemoryBackend
from fileio.store import FileIO
from fileio.testing.env import FakeEnv
from fileio.testing.faults import Fault, FaultyBackend, Rule
from fileio.write_outcomes import RetryPolicy
from objcat.errors import CommitConflict, CommitUnknown, CorruptTable, UnsupportedFormat, WriterFenced
from objcat.timeline.attempt import CommitAttempt
from objcat.timeline.commit import Committer
from objcat.timeline.entry import Action, Entry, FileGroupId, Footprint, encode_entry, log_key, new_txn
from objcat.timeline.log import Log
from objcat.timeline.log_state import LogState

TABLE = "t"


def known(fileio: FileIO, slot: int) -> LogState:
    """The log as somebody knows it who has read up to a slot; as if there were an older one when there is none."""
    return LogState().advance(Log(fileio).read_after(-1, until=slot)) if slot >= 0 else LogState()


def candidate(
    fileio: FileIO, base: int, *, creates: tuple[int, ...] = (), appends: tuple[int, ...] = (0,), count: int = 4
) -> CommitAttempt:
    footprint = Footprint(
        creates=tuple(FileGroupId("", b, count) for b in creates),
        appends=tuple(FileGroupId("", b, count) for b in appends),
    )
    return CommitAttempt(
        txn=new_txn(fileio.env),
        action=Action.DELTA_COMMIT,
        base=known(fileio, base),
        changes={TABLE: msgspec.Raw(b"{}")},
        footprint={TABLE: footprint},
    )


def test_commits_take_dense_slots_and_their_times_strictly_increase() -> None:
    fileio = FileIO(MemoryBackend("dense"), env=FakeEnv())
    slots = [Committer(fileio).commit(candidate(fileio, -1)).entry for _ in range(5)]
    assert [entry.slot for entry in slots] == [0, 1, 2, 3, 4]
    began_ms = slots[0].committed_at_ms
    assert [entry.committed_at_ms for entry in slots] == [began_ms, began_ms + 1, began_ms + 2, began_ms + 3, began_ms + 4]
    assert [entry.txn for entry in Log(fileio).read_after(-1)] == [entry.txn for entry in slots]


def test_a_commit_reads_every_slot_below_the_one_it_claims() -> None:
    fileio = FileIO(MemoryBackend("reads"))
    for _ in range(7):
        Committer(fileio).commit(candidate(fileio, -1))
    committed = Committer(fileio).commit(candidate(fileio, 2))
    assert [entry.slot for entry in committed.read] == [3, 4, 5, 6]
    assert committed.entry.slot == 7
    assert committed.slots_lost == 1


@pytest.mark.parametrize(
    ("mine", "theirs", "conflicts"),
    [
        ({"appends": (0,)}, {"appends": (0,)}, False),
        ({"creates": (0,)}, {"creates": (0,)}, True),
        ({"creates": (0,)}, {"appends": (0,)}, True),
        ({"creates": (0,)}, {"appends": (1,)}, False),
        ({"creates": (0,), "appends": ()}, {"creates": (1,), "appends": ()}, False),
        ({"creates": (1,), "appends": ()}, {"creates": (0,), "appends": (), "count": 2}, True),
    ],
)
def test_the_rules_cell_by_cell(mine: dict[str, object], theirs: dict[str, object], conflicts: bool) -> None:
    fileio = FileIO(MemoryBackend("cells"))
    Committer(fileio).commit(candidate(fileio, -1, **{"appends": (), **theirs}))  # type: ignore[arg-type]
    own = candidate(fileio, -1, **{"appends": (), **mine})  # type: ignore[arg-type]
    if conflicts:
        with pytest.raises(CommitConflict) as caught:
            Committer(fileio).commit(own)
        assert caught.value.winner_slot == 0
        assert Log(fileio).read_slot(1) is None
    else:
        assert Committer(fileio).commit(own).entry.slot == 1


def test_a_lost_response_of_the_slot_is_the_commit_itself() -> None:
    rule = Rule(kinds=frozenset({"put"}), key=lambda key: key.startswith("log/"), fault=Fault.AFTER)
    fileio = FileIO(FaultyBackend(MemoryBackend("lost"), [rule]), env=FakeEnv())
    committed = Committer(fileio).commit(candidate(fileio, -1))
    assert committed.entry.slot == 0
    assert Log(fileio).read_slot(1) is None


def test_an_outcome_that_nobody_can_tell_is_unknown_and_not_failure() -> None:
    memory = MemoryBackend("unknown")
    rules = [
        Rule(kinds=frozenset({"put"}), key=lambda key: key.startswith("log/"), fault=Fault.AFTER, times=100),
        Rule(kinds=frozenset({"head", "get"}), fault=Fault.BEFORE, times=100),
    ]
    fileio = FileIO(FaultyBackend(memory, rules), env=FakeEnv(), policy=RetryPolicy(attempts_max=3))
    own = candidate(fileio, -1)
    with pytest.raises(CommitUnknown) as caught:
        Committer(fileio).commit(own)
    assert caught.value.txn == own.txn
    landed = Log(FileIO(memory)).read_slot(0)
    assert landed is not None and landed.txn == own.txn


def test_a_writer_that_was_rolled_back_is_fenced() -> None:
    fileio = FileIO(MemoryBackend("fenced"))
    own = candidate(fileio, -1)
    rollback = Entry(format=1, slot=0, action=Action.ROLLBACK, txn=new_txn(fileio.env), base=-1, committed_at_ms=1, rollback_of=own.txn)
    assert isinstance(fileio.put(log_key(0), encode_entry(rollback), Create()), Written)
    with pytest.raises(WriterFenced, match="rolled back at slot 0"):
        Committer(fileio).commit(own)
    assert Log(fileio).read_slot(1) is None


def test_many_writers_share_one_log_and_nothing_is_lost() -> None:
    fileio = FileIO(MemoryBackend("many"))
    won: list[tuple[int, str]] = []
    lock = threading.Lock()

    def write() -> None:
        for _ in range(20):
            entry = Committer(fileio).commit(candidate(fileio, -1)).entry
            with lock:
                won.append((entry.slot, entry.txn))

    threads = [threading.Thread(target=write) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(slot for slot, _ in won) == list(range(120))
    assert [(entry.slot, str(entry.txn)) for entry in Log(fileio).read_after(-1)] == sorted(won)


def test_a_missing_slot_below_a_seen_one_is_an_error_not_an_end() -> None:
    fileio = FileIO(MemoryBackend("gap"), env=FakeEnv())
    for _ in range(6):
        Committer(fileio).commit(candidate(fileio, -1))
    fileio.delete([log_key(4)])
    with pytest.raises(CorruptTable, match=r"00004\.json is missing although later slots exist"):
        Log(fileio).read_after(-1)


def test_a_slot_of_a_newer_format_or_feature_is_refused() -> None:
    fileio = FileIO(MemoryBackend("newer"))
    fileio.put(log_key(0), b'{"format": 2, "min_client": "3.1", "anything": "else"}')
    with pytest.raises(UnsupportedFormat, match=r"table format 2.* objcat 3.1 or newer"):
        Log(fileio).read_slot(0)
    fileio.put(log_key(0), b'{"format": 1, "features": {"quantum": "0.9"}}')
    with pytest.raises(UnsupportedFormat, match=r"'quantum'.* objcat 0.9 or newer"):
        Log(fileio).read_slot(0)
    fileio.put(log_key(0), b"not json")
    with pytest.raises(CorruptTable, match="not a log entry"):
        Log(fileio).read_slot(0)


def test_a_refresh_without_news_is_one_get() -> None:
    fileio = FileIO(MemoryBackend("budget"))
    for _ in range(3):
        Committer(fileio).commit(candidate(fileio, -1))
    before = fileio.metrics.snapshot()
    assert Log(fileio).read_after(2) == []
    assert (fileio.metrics.snapshot() - before).requests == {"get": 1}


def test_a_commit_without_contention_is_one_conditional_write() -> None:
    fileio = FileIO(MemoryBackend("one"))
    before = fileio.metrics.snapshot()
    Committer(fileio).commit(candidate(fileio, -1))
    assert (fileio.metrics.snapshot() - before).requests == {"put_create": 1}


@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize("hours", [-1, 0, 1, 87_600])
def test_commit_times_follow_the_stores_clock_whatever_the_local_one_says(hours: int, lost: bool) -> None:
    env = FakeEnv()
    store_ms = env.now_ms() + hours * 3_600_000
    rules = [Rule(kinds=frozenset({"put"}), key=lambda key: key.startswith("intents/"), fault=Fault.AFTER)] if lost else []
    fileio = FileIO(FaultyBackend(ClockBackend("clock", store_ms), rules), env=env)
    committer = Committer(fileio)
    own = candidate(fileio, -1)
    skew_ms = committer.announce(own.txn, own.action, own.base, engine="test").result()
    assert abs(committer.commit(own, skew_ms=skew_ms).entry.committed_at_ms - store_ms) <= 1000


class ClockBackend(MemoryBackend):
    """A memory store with a clock of its own, which stands still."""

    def __init__(self, name: str, now_ms: int) -> None:
        super().__init__(name)
        self._now_ms = now_ms

    @property
    def capabilities(self) -> Capabilities:
        return replace(super().capabilities, store_clock=True)

    def put(self, key: str, data: Buffer, mode: PutMode, metadata: Mapping[str, str]) -> PutOutcome:
        outcome = super().put(key, data, mode, metadata)
        return replace(outcome, store_time_ms=self._now_ms) if isinstance(outcome, Written) else outcome

    def head(self, key: str) -> ObjectMeta:
        return replace(super().head(key), modified_ms=self._now_ms)


def test_an_entry_that_no_reader_takes_is_never_written() -> None:
    fileio = FileIO(MemoryBackend("unreadable"))
    with pytest.raises(TypeError, match="no reader takes"):
        Committer(fileio).commit(replace(candidate(fileio, -1), metadata={"batch": 7}))  # type: ignore[dict-item]
    assert list(fileio.list_keys()) == []
