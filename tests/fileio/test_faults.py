"""The faulty backend does what its script says, and nothing else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from fileio.contract import (
    Create,
    GetResult,
    NotModified,
    OutcomeUnknown,
    Overwrite,
    PreconditionFailed,
    PutOutcome,
    Range,
    Suffix,
    Update,
    Version,
    Written,
)
from fileio.errors import NotFound, Throttled, Unavailable
from fileio.memory import MemoryBackend
from fileio.store import FileIO
from fileio.testing import Crash, FakeEnv, Fault, FaultyBackend, RandomFaults, Rule, Rules
from fileio.testing.faults import APPLICABLE, Kind, Request, default_key_class


def faulty(*rules: Rule) -> tuple[MemoryBackend, FaultyBackend]:
    memory = MemoryBackend("inner", keep_history=True, env=FakeEnv())
    memory.put("present", b"before", Overwrite(), {})
    return memory, FaultyBackend(memory, rules)


def states(memory: MemoryBackend, key: str) -> list[bytes | None]:
    return [state.data for state in memory.history(key)]


def send(kind: Kind, backend: FaultyBackend) -> PutOutcome:
    """One write of every kind that answers an outcome, to the new key `new`."""
    match kind:
        case "put":
            return backend.put("new", b"x", Create(), {})
        case "append":
            return backend.append("new", b"x", 0)
        case "copy":
            return backend.copy("present", "new", Create(), {})
        case _:
            upload = backend.start_upload("new", Create(), {})
            upload.put_part(1, b"x")
            return upload.complete()


WRITES: list[Kind] = ["put", "append", "copy", "upload_complete"]


@pytest.mark.parametrize("kind", WRITES)
@pytest.mark.parametrize(
    ("fault", "answer", "landed", "landed_later"),
    [
        (Fault.BEFORE, OutcomeUnknown, 0, 0),
        (Fault.AFTER, OutcomeUnknown, 1, 1),
        (Fault.LATER, OutcomeUnknown, 0, 1),
        (Fault.TWICE, PreconditionFailed, 1, 1),
        (Fault.WRONG_VERSION, Written, 1, 1),
    ],
)
def test_a_write_with_a_lost_or_false_answer(kind: Kind, fault: Fault, answer: type, landed: int, landed_later: int) -> None:
    memory, backend = faulty(Rule(fault=fault, kinds=frozenset({kind})))
    outcome = send(kind, backend)
    assert isinstance(outcome, answer)
    assert len(states(memory, "new")) == landed
    assert backend.pending == landed_later - landed
    backend.release()
    assert len(states(memory, "new")) == landed_later
    assert (isinstance(outcome, Written) and outcome.version == memory.head("new").version) is False
    assert backend.fired == {(kind, "new", fault): 1}


@pytest.mark.parametrize("kind", WRITES)
@pytest.mark.parametrize(
    ("fault", "error", "landed"), [(Fault.THROTTLE, Throttled, 0), (Fault.CRASH_BEFORE, Crash, 0), (Fault.CRASH_AFTER, Crash, 1)]
)
def test_a_write_that_is_refused_or_crashes(kind: Kind, fault: Fault, error: type[BaseException], landed: int) -> None:
    memory, backend = faulty(Rule(fault=fault, kinds=frozenset({kind})))
    with pytest.raises(error):
        send(kind, backend)
    assert len(states(memory, "new")) == landed


def test_what_is_delayed_takes_effect_after_so_many_requests() -> None:
    _, backend = faulty(Rule(fault=Fault.LATER, kinds=frozenset({"put"}), delay=2))
    assert isinstance(backend.put("new", b"late", Create(), {}), OutcomeUnknown)
    for _ in range(2):
        with pytest.raises(NotFound):
            backend.head("new")
    assert backend.head("new").size == 4


def test_what_is_delayed_keeps_its_condition() -> None:
    memory, backend = faulty(Rule(fault=Fault.LATER, kinds=frozenset({"put"})))
    buffer = bytearray(b"late")
    assert isinstance(backend.put("new", buffer, Create(), {}), OutcomeUnknown)
    buffer[:] = b"????"
    assert isinstance(backend.put("new", b"early", Create(), {}), Written)
    backend.release()
    assert states(memory, "new") == [b"early"]


@pytest.mark.parametrize("kind", ["put", "copy", "upload_start"])
def test_a_store_that_lies_ignores_the_condition(kind: Kind) -> None:
    memory, backend = faulty(Rule(fault=Fault.IGNORE_CONDITION, kinds=frozenset({kind}), times=9))
    for _ in range(2):
        assert isinstance(send("upload_complete" if kind == "upload_start" else kind, backend), Written)
    assert len(states(memory, "new")) == 2


def test_stale_reads_answer_with_the_state_before() -> None:
    memory, backend = faulty(Rule(fault=Fault.STALE, kinds=frozenset({"get", "head"}), nth=1, times=5))
    backend.put("present", b"after", Overwrite(), {})
    old = memory.history("present")[0]
    found = backend.get("present", Range(1, 3), None)
    assert isinstance(found, GetResult) and (found.data, found.meta.version) == (b"ef", old.version)
    assert backend.get("present", None, old.version) == NotModified()
    suffix = backend.get("present", Suffix(2), None)
    assert isinstance(suffix, GetResult) and suffix.data == b"re"
    assert backend.head("present").version == old.version
    backend.put("new", b"x", Create(), {})
    with pytest.raises(NotFound):
        backend.get("new", None, None)
    assert backend.head("new").size == 1


@pytest.mark.parametrize("read", [lambda b: b.get("present", None, None), lambda b: b.head("present")], ids=["get", "head"])
def test_reads_that_fail(read: Callable[[FaultyBackend], object]) -> None:
    _, backend = faulty(Rule(fault=Fault.MISSING), Rule(fault=Fault.BEFORE, nth=2), Rule(fault=Fault.THROTTLE, nth=3))
    for error in (NotFound, Unavailable, Throttled):
        with pytest.raises(error):
            read(backend)
    read(backend)


def test_a_read_may_name_a_wrong_version() -> None:
    memory, backend = faulty(Rule(fault=Fault.WRONG_VERSION, times=2))
    found = backend.get("present", None, None)
    assert isinstance(found, GetResult) and found.data == b"before"
    true = memory.head("present").version
    assert true not in (found.meta.version, backend.head("present").version)
    assert backend.head("present").version == true


def test_deletions_in_part_and_lost() -> None:
    memory, backend = faulty(Rule(fault=Fault.PARTIAL), Rule(fault=Fault.AFTER, nth=2, kinds=frozenset({"delete"})))
    for key in "abc":
        memory.put(key, b"", Overwrite(), {})
    assert [type(result.error) for result in backend.delete_batch(["a", "b", "c"])] == [type(None), Throttled, type(None)]
    with pytest.raises(Unavailable):
        backend.delete_batch(["b"])
    assert states(memory, "b") == [b"", None]


def test_file_io_deletes_what_was_refused_once_more() -> None:
    _, backend = faulty(Rule(fault=Fault.PARTIAL), Rule(fault=Fault.BEFORE, nth=2, kinds=frozenset({"delete"})))
    store = FileIO(backend, env=FakeEnv())
    keys = [f"k{n}" for n in range(7)]
    for key in keys:
        store.put(key, b"")
    assert [(result.key, result.error) for result in store.delete(keys)] == [(key, None) for key in keys]
    assert list(store.list_keys()) == ["present"]
    assert store.metrics.snapshot().requests["delete"] == 3


def test_file_io_reports_what_cannot_be_deleted_by_key() -> None:
    _, backend = faulty(Rule(fault=Fault.PARTIAL), Rule(fault=Fault.BEFORE, kinds=frozenset({"delete"}), nth=2, times=99))
    results = FileIO(backend, env=FakeEnv()).delete(["present", "other"])
    assert [(result.key, type(result.error)) for result in results] == [("present", type(None)), ("other", Throttled)]


def test_uploads_through_a_bad_network() -> None:
    memory, backend = faulty(
        Rule(fault=Fault.BEFORE, kinds=frozenset({"upload_start"})),
        Rule(fault=Fault.AFTER, kinds=frozenset({"upload_part"})),
        Rule(fault=Fault.AFTER, kinds=frozenset({"upload_complete"})),
        Rule(fault=Fault.BEFORE, kinds=frozenset({"upload_abort"})),
    )
    store = FileIO(backend, env=FakeEnv())
    upload = store.start_upload("new", Create())
    upload.put_part(1, b"one")
    upload.put_part(2, b"two")
    assert isinstance(upload.complete(), Written)
    other = store.start_upload("other", Create())
    other.abort()
    assert memory.uploads_in_progress == []
    assert store.read("new") == b"onetwo"
    assert store.metrics.snapshot().retries == 4


# ---- scripts


def test_rules_count_their_own_requests() -> None:
    script = Rules(
        [
            Rule(fault=Fault.THROTTLE, kinds=frozenset({"put"}), key=lambda key: key.startswith("slots/"), nth=2, times=2),
            Rule(fault=Fault.BEFORE, nth=3),
        ]
    )
    asked: list[tuple[Kind, str]] = [
        ("put", "slots/1"),
        ("get", "slots/1"),
        ("put", "other"),
        ("put", "slots/1"),
        ("put", "slots/2"),
        ("put", "slots/3"),
    ]
    hits = [script.choose(Request(n, kind, key)) for n, (kind, key) in enumerate(asked, 1)]
    assert [hit and hit.fault for hit in hits] == [None, None, Fault.BEFORE, Fault.THROTTLE, Fault.THROTTLE, None]


def test_a_rule_that_can_never_fire_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot suffer"):
        Rule(fault=Fault.STALE, kinds=frozenset({"put"}))


def test_a_storm_repeats_itself_from_its_seed_and_calms_down() -> None:
    def storm(seed: int) -> tuple[list[str], Counter[tuple[Kind, str, Fault]]]:
        memory = MemoryBackend(env=FakeEnv(), keep_history=True)
        backend = FaultyBackend(
            memory, RandomFaults(seed=seed, rate=0.5, faults=set(Fault) - {Fault.CRASH_BEFORE, Fault.CRASH_AFTER}, faults_max=20)
        )
        store = FileIO(backend, env=FakeEnv())
        seen = []
        for number in range(60):
            try:
                seen.append(repr(store.put(f"k{number % 5}", b"%d" % number, Update(Version("1")) if number % 3 else Create())))
            except Throttled as error:
                seen.append(repr(error))
        return seen, backend.fired

    assert storm(1) == storm(1)
    assert storm(1)[0] != storm(2)[0]
    assert storm(1)[1].total() == 20


def test_coverage_names_the_call_sites_that_never_suffered() -> None:
    _, backend = faulty(Rule(fault=Fault.AFTER, key=lambda key: key.startswith("slots/")))
    backend.put("slots/0000000001", b"", Create(), {})
    backend.put("slots/0000000002", b"", Create(), {})
    backend.head("present")
    assert backend.asked == {("put", "slots/#"): 2, ("head", "present"): 1}
    assert backend.never_fired({Fault.AFTER}) == set()
    assert backend.never_fired({Fault.AFTER, Fault.STALE, Fault.THROTTLE}) == {
        ("head", "present", Fault.STALE),
        ("head", "present", Fault.THROTTLE),
        ("put", "slots/#", Fault.THROTTLE),
    }
    assert default_key_class("data/day=2013-01-01/0123456789abcdef.parquet") == "data/day=#-#-#/#.parquet"


def test_hooks_are_called_around_every_request() -> None:
    memory = MemoryBackend(env=FakeEnv())
    seen: list[tuple[str, int, Kind, str]] = []
    backend = FaultyBackend(
        memory,
        before=lambda request: seen.append(("before", request.number, request.kind, request.key)),
        after=lambda request: seen.append(("after", request.number, request.kind, request.key)),
    )
    backend.put("a", b"", Create(), {})
    with pytest.raises(NotFound):
        backend.head("b")
    assert seen == [("before", 1, "put", "a"), ("after", 1, "put", "a"), ("before", 2, "head", "b"), ("after", 2, "head", "b")]


def test_every_fault_is_applicable_somewhere_and_a_calm_network_changes_nothing() -> None:
    assert set().union(*APPLICABLE.values()) == set(Fault)
    memory, backend = faulty()
    assert send("put", backend) == Written(memory.head("new").version)
    assert backend.url == memory.url and backend.capabilities == memory.capabilities
    assert [meta.key for meta in backend.list_page("", None, None, None, 10).objects] == ["new", "present"]
    assert not backend.fired
