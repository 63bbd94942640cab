"""Conformance under races: every client has its own connections, and exactly one of them wins."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fileio.contract import Create, GetResult, PreconditionFailed, PutMode, PutOutcome, Range, Suffix, Update, Written
from fileio.env import default_env
from fileio.errors import Unsupported
from fileio.store import FileIO
from fileio.testing.subject import Place, race, written

ROUNDS = 3


def exactly_one(store: FileIO, key: str, outcomes: list[PutOutcome]) -> int:
    """The number of the one client whose write took effect. The object has its version."""
    winners = [number for number, outcome in enumerate(outcomes) if isinstance(outcome, Written)]
    assert len(winners) == 1, f"{len(winners)} writers of {key!r} were told that they won: {outcomes}"
    winner = outcomes[winners[0]]
    assert isinstance(winner, Written) and store.head(key).version == winner.version
    assert all(isinstance(outcome, PreconditionFailed) for number, outcome in enumerate(outcomes) if number not in winners), outcomes
    assert store.read(key) == body(winners[0])
    return winners[0]


def body(client: int) -> bytes:
    """The bytes that a client writes."""
    return b"client %d " % client * 50


def run_rounds(place: Place, write: Callable[[FileIO, str, int, PutMode], PutOutcome], mode: str) -> None:
    """Several races, each for a fresh key. All clients stay open."""
    judge = place.open()
    stores = [place.open() for _ in range(place.subject.clients)]
    for store in stores:
        store.exists("warm")
    for number in range(ROUNDS):
        key = f"slots/{number}"
        asked: PutMode = Create()
        if mode == "swap":
            asked = Update(written(judge.put(key, b"before", Create())).version)
        outcomes = race(len(stores), lambda client, key=key, asked=asked: write(stores[client], key, client, asked))  # type: ignore[misc]
        exactly_one(judge, key, outcomes)


@pytest.mark.parametrize("case", ["create", "swap"])
def test_race_of_puts(place: Place, case: str) -> None:
    """One client wins."""
    run_rounds(place, lambda store, key, client, mode: store.put(key, body(client), mode), case)


@pytest.mark.parametrize("case", ["create", "swap"])
def test_race_of_uploads(place: Place, case: str) -> None:
    """The race begins before the parts are sent, and all complete at about the same time."""

    def write(store: FileIO, key: str, client: int, mode: PutMode) -> PutOutcome:
        upload = store.start_upload(key, mode)
        upload.put_part(1, body(client))
        outcome = upload.complete()
        if not isinstance(outcome, Written):
            upload.abort()
        return outcome

    if not place.open().capabilities.conditional_complete:
        with pytest.raises(Unsupported, match="upload"):
            place.open().start_upload("slots/0", Create())
        return
    run_rounds(place, write, case)
    if place.subject.uploads is not None:
        assert [key for key in place.subject.uploads() if place.prefix in key] == []


@pytest.mark.parametrize("case", ["create", "swap"])
def test_race_of_copies(place: Place, case: str) -> None:
    """One client wins."""
    judge = place.open()
    if not judge.capabilities.conditional_copy:
        with pytest.raises(Unsupported, match="copy"):
            judge.copy("source", "target", Create())
        return
    for client in range(place.subject.clients):
        written(judge.put(f"sources/{client}", body(client)))
    run_rounds(place, lambda store, key, client, mode: store.copy(f"sources/{client}", key, mode), case)


def test_race_of_appends(place: Place) -> None:
    """One client wins."""
    judge = place.open()
    if not judge.capabilities.append:
        with pytest.raises(Unsupported, match="append"):
            judge.append("slots/0", b"", offset=0)
        return
    stores = [place.open() for _ in range(place.subject.clients)]
    for number in range(ROUNDS):
        outcomes = race(len(stores), lambda client, key=f"slots/{number}": stores[client].append(key, body(client), offset=0))  # type: ignore[misc]
        exactly_one(judge, f"slots/{number}", outcomes)


@pytest.mark.parametrize("case", ["whole", "range", "suffix"])
def test_race_of_reads_with_writes(place: Place, case: str) -> None:
    """Bytes and version of an answer belong together. Otherwise a compare-and-swap loses what came in between."""
    asked = {"whole": None, "range": Range(0, 400), "suffix": Suffix(400)}[case]
    stores = [place.open() for _ in range(5)]
    bodies = [(b"%d " % number * 100)[: number % 3 * 200] for number in range(30)]
    states = {written(stores[0].put("object", b"first")).version: b"first"}
    done: list[bool] = []

    def act(client: int) -> list[GetResult]:
        seen: list[GetResult] = []
        if client == 0:
            try:
                for body_now in bodies:
                    states[written(stores[0].put("object", body_now)).version] = body_now
            finally:
                done.append(True)
        while client and not done:
            found = stores[client].get("object", byte_range=asked)
            assert isinstance(found, GetResult)
            seen.append(found)
        return seen

    for found in [found for seen in race(len(stores), act) for found in seen]:
        whole = states[found.meta.version]
        assert (found.data, found.meta.size) == (whole, len(whole))


def test_a_counter_raised_by_many_loses_nothing(place: Place) -> None:
    """Compare-and-swap with backoff. The body lists every increment, so that none is lost or counted twice."""
    judge = place.open()
    written(judge.put("counter", b"", Create()))
    stores = [place.open() for _ in range(place.subject.clients)]
    env = default_env()

    def raise_counter(client: int) -> list[bytes]:
        marks = [b"%d.%d " % (client, number) for number in range(place.subject.increments)]
        for mark in marks:
            defeats = 0
            while True:
                found = stores[client].get("counter")
                assert isinstance(found, GetResult)
                outcome = stores[client].put("counter", found.data + mark, Update(found.meta.version))
                assert isinstance(outcome, Written | PreconditionFailed), outcome
                if isinstance(outcome, Written):
                    break
                defeats += 1
                assert defeats < 2000, "no progress"
                env.sleep(env.random() * min(1.0, 0.01 * 2 ** min(defeats, 10)))
        return marks

    marks = [mark for listed in race(len(stores), raise_counter) for mark in listed]
    assert sorted(judge.read("counter").split()) == sorted(mark.strip() for mark in marks)
