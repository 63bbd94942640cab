"""The engine itself: it finds what is planted, the shortest way, it tells the story, and it refuses code that is not deterministic."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pytest

from fileio.contract import Create, Update, Version, Written
from tests.explorer.actors import Acknowledged, Actor, Failed, NotDeterministic, Participant
from tests.explorer.cast import LATE, writer
from tests.explorer.engine import Beginning, Cell, Search, Universe
from tests.explorer.run import beginning
from tests.explorer.store import Fault, Profile, Request, perform, settled, stale
from tests.explorer.story import tell

NOTHING = Beginning({}, None)
BOAST = "20270115T080000000Z-0100000000000001"
LOG_KEY = "t/log/00000000000000000000.json"


def explored(cell: Cell, start: Beginning = NOTHING):
    return Search(cell, start, Universe()).run()


@dataclass(frozen=True, slots=True)
class Touch:
    """Puts a few keys, each of its own."""

    keys: int

    def __call__(self, me: Participant) -> None:
        for number in range(self.keys):
            me.fileio.put(f"{me.fileio.env.new_id()}/{number}", b"")


def test_independent_actors_give_the_grid_of_their_steps() -> None:
    actors = (Actor("a", 1, Touch(3)), Actor("b", 2, Touch(4)))
    result = explored(Cell(name="grid", actors=actors, states_min=0))
    assert (result.states, result.moves, result.depth) == (4 * 5, 3 * 5 + 4 * 4, 7)
    assert result.steps == 4 + 5


def test_a_crash_ends_an_actor_before_or_after_the_effect() -> None:
    result = explored(Cell(name="crash", actors=(Actor("a", 1, Touch(1)),), crashes_max=1, states_min=0))
    assert result.states == 4  # nothing yet; done; dead before; dead after


@dataclass(frozen=True, slots=True)
class Boast:
    """Says that it failed, without waiting for what is still under way."""

    def __call__(self, me: Participant) -> None:
        entry = {"txn": BOAST, "action": "CREATE", "committed_at_ms": 1, "slot": 0}
        body = json.dumps(entry).encode()
        outcome = me.fileio.put(LOG_KEY, body, Create())
        if not isinstance(outcome, Written):
            me.note(Failed(BOAST))
        else:
            me.note(Acknowledged(BOAST, 0))


def test_a_failure_that_may_still_land_is_found_and_told() -> None:
    cell = Cell(name="boast", actors=(Actor("boaster", 1, Boast(), attempts_max=1),), faults_max=1, faults=LATE, states_min=0)
    found = explored(cell).counterexample
    assert found is not None
    assert found.broken.startswith("P4: boaster was told")
    assert [name for name, *_ in found.steps] == ["boaster", "boaster", "network"]
    story = tell(found)
    assert "1. boaster  put if absent t/log/0.json = CREATE 1.1 -> no answer  [LATER" in story
    assert "lands: put if absent t/log/" in story
    assert "boaster was told: Failed" in story


class _Fickle:
    calls = 0


@dataclass(frozen=True, slots=True)
class Fickle:
    """Asks for something else every time."""

    def __call__(self, me: Participant) -> None:
        _Fickle.calls += 1
        me.fileio.put(f"key/{_Fickle.calls}", b"")
        me.fileio.put("key/end", b"")


def test_code_that_is_not_deterministic_is_refused() -> None:
    with pytest.raises(NotDeterministic, match="asked for"):
        explored(Cell(name="fickle", actors=(Actor("fickle", 1, Fickle()),), states_min=0))


@dataclass(frozen=True, slots=True)
class Endless:
    """Never ends."""

    def __call__(self, me: Participant) -> None:
        while True:
            me.fileio.exists("key")


def test_an_actor_that_never_ends_is_found() -> None:
    found = explored(Cell(name="endless", actors=(Actor("endless", 1, Endless()),), states_min=0)).counterexample
    assert found is not None and found.broken.startswith("P11: endless")


@dataclass(frozen=True, slots=True)
class Bungle:
    """Breaks."""

    def __call__(self, me: Participant) -> None:
        me.fileio.exists("key")
        raise ZeroDivisionError("of all things")


def test_an_error_outside_of_the_contract_is_found() -> None:
    found = explored(Cell(name="bungle", actors=(Actor("bungler", 1, Bungle()),), states_min=0)).counterexample
    assert found is not None and found.broken == "P0: bungler broke: ZeroDivisionError: of all things"


def test_faults_that_no_budget_reaches_are_missed() -> None:
    universe = Universe()
    start = beginning(Profile())
    Search(Cell(name="calm", actors=(writer(1),), states_min=0), start, universe).run()
    assert any(fault is Fault.CRASH_AFTER for _, fault in universe.coverage.missed)
    Search(Cell(name="faults", actors=(writer(1),), faults_max=3, crashes_max=1, states_min=0), start, universe).run()
    assert not any(": put " in site for site, _ in universe.coverage.missed)


# ---- the store


def request_to_put(data: bytes, mode: object) -> Request:
    return Request("put", ("k",), data, mode)  # type: ignore[arg-type]


@pytest.mark.parametrize("profile", [Profile(), Profile(content_versions=True)])
def test_the_store_honours_conditions_and_remembers_what_was(profile: Profile) -> None:
    first, contents = perform({}, request_to_put(b"a", Create()), profile)
    assert first.kind == "written"
    assert perform(contents, request_to_put(b"b", Create()), profile) == (first._replace(kind="conflict"), contents)
    assert perform(contents, request_to_put(b"b", Update(Version("no"))), profile)[0].kind == "conflict"
    read = Request("get", ("k",), rest=(None, None))
    assert stale(contents, read).kind == "absent"
    assert stale(settled(contents), read) == perform(contents, read, profile)[0]
    _, swapped = perform(contents, request_to_put(b"b", Update(Version(first.version or ""))), profile)
    assert stale(swapped, read).found == contents["k"].now
    _, gone = perform(swapped, Request("delete", ("k", "missing")), profile)
    assert perform(gone, read, profile)[0].kind == "absent"
    again, _ = perform(gone, request_to_put(b"a", Create()), profile)
    assert (again.version == first.version) == profile.content_versions
