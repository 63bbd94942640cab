"""The search: every order of the actors' requests and every fault within a budget, breadth first: the first counterexample is the shortest.

A state is the store, where each actor is in its tree, what is left of the budget, and the requests that are still under way. Its future
depends on nothing else, so schedules that lead to the same state are one. An actor that has ended is only what it said.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from objcat.metadata.table_state import Tables
from objcat.timeline.log_view import LogView
from tests.explorer.actors import Actor, Began, Note, Refused, Tree
from tests.explorer.deletions import could_commit, is_nameless, may_delete, restored_late
from tests.explorer.facts import Facts, facts_of
from tests.explorer.mirrored import replaced
from tests.explorer.properties import check_notes, check_store
from tests.explorer.roles import CREATED
from tests.explorer.store import (
    CRASHES,
    LOST,
    PLAIN,
    REFUSED,
    UNAVAILABLE,
    Answer,
    Contents,
    Fault,
    Profile,
    Request,
    perform,
    stale,
)

SOLO_STEPS_MAX = 100
"""P11: an actor that is alone from now on, in calm weather, ends within this many requests."""


@dataclass(frozen=True, slots=True)
class Beginning:
    """The store at the start of a cell, and the table in it as an actor knows it that has it open."""

    contents: Contents
    warm: LogView[Tables] | None


Settings: TypeAlias = tuple[tuple[str, str, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One bounded search.

    faults_max, crashes_max: in one schedule, all actors together. faults: of these kinds, at requests whose first key begins with one of
    `where`. prelude: what the store holds at the start is made by these, one after the other, and nothing goes wrong. settings: of the
    code under test, (module, name, value), smaller than in life. all_succeed: without any fault no actor may be refused. states_min: fewer
    states mean that the cell has lost its point. solo_steps_max: of P11, more than usual where an actor is several operations in turn.
    """

    name: str
    actors: tuple[Actor, ...]
    states_min: int
    faults_max: int = 0
    crashes_max: int = 0
    faults: frozenset[Fault] = frozenset(Fault)
    where: tuple[str, ...] = ("",)
    profile: Profile = PLAIN
    prelude: tuple[Actor, ...] = CREATED
    settings: Settings = ()
    all_succeed: bool = False
    solo_steps_max: int = SOLO_STEPS_MAX
    slow: bool = False


State: TypeAlias = tuple[int, tuple[int, ...], int, int, tuple[int, ...], tuple[tuple[int, ...], ...]]
"""(store, actors, faults left, crashes left, requests under way, floors).

actors: the node of each; of one that has ended, minus one minus the number of its ending. floors: of each actor, the head of the log when
each of its reads began."""


class Ending(NamedTuple):
    """What is left of an actor that takes no more steps."""

    crashed: bool
    notes: tuple[Note, ...]


class Move(NamedTuple):
    """One step of a schedule. actor: its index; -1: a request that was under way lands. answer: None for a crash and for a landing."""

    actor: int
    request: int
    fault: Fault | None
    answer: Answer | None


class Way(NamedTuple):
    """How one request of an actor may go, whatever the others do. crash, pending: what it costs and leaves. becomes: the actor afterwards.
    broken: what is wrong with the move itself."""

    move: Move
    store: int
    becomes: int
    faulty: bool
    crash: bool
    pending: bool
    broken: str | None


@dataclass(frozen=True, slots=True)
class Counterexample:
    """The shortest schedule that breaks a property. steps: (actor's name, request, fault, answer)."""

    broken: str
    steps: tuple[tuple[str, Request, Fault | None, Answer | None], ...]
    notes: tuple[tuple[str, tuple[Note, ...]], ...]


@dataclass(slots=True)
class Result:
    """states, moves: of the graph. runs: of real code, for this cell. steps: remembered by its actors, each compared with a second run."""

    cell: Cell
    states: int = 0
    moves: int = 0
    runs: int = 0
    steps: int = 0
    depth: int = 0
    counterexample: Counterexample | None = None


@dataclass(slots=True)
class Coverage:
    """Which code asked, and which faults met it there. possible: faults that could have struck, stale reads only in cells that admit them;
    fired: those that did, in some cell."""

    possible: set[tuple[str, Fault]] = field(default_factory=set)
    fired: set[tuple[str, Fault]] = field(default_factory=set)

    @property
    def missed(self) -> set[tuple[str, Fault]]:
        return self.possible - self.fired


class Universe:
    """What cells share: actors' trees, stores, effects. One for each version of the code under test: a mutation needs its own."""

    def __init__(self) -> None:
        self.coverage = Coverage()
        self._trees: dict[tuple[object, ...], Tree] = {}

    def tree(self, actor: Actor, cell: Cell, beginning: Beginning) -> Tree:
        key = (actor, cell.profile, cell.prelude, cell.settings)
        if key not in self._trees:
            self._trees[key] = Tree(actor, cell.profile, beginning.warm)
        return self._trees[key]


class Search:
    """One cell's graph. Not for use by several threads."""

    def __init__(self, cell: Cell, beginning: Beginning, universe: Universe) -> None:
        self._cell = cell
        self._trees = [universe.tree(actor, cell, beginning) for actor in cell.actors]
        self._coverage = universe.coverage
        self._stores: list[Contents] = []
        self._store_ids: dict[frozenset[object], int] = {}
        self._facts: list[Facts] = []
        self._broken_stores: list[str | None] = []
        self._requests: list[Request] = []
        self._request_ids: dict[Request, int] = {}
        self._deletes: set[int] = set()
        self._endings: list[Ending] = []
        self._ending_ids: dict[Ending, int] = {}
        self._effects: dict[tuple[int, int], tuple[Answer, int]] = {}
        self._ways: dict[tuple[int, int, int, int], list[Way]] = {}
        self._verdicts: dict[tuple[object, ...], str | None] = {}
        self._solo: dict[tuple[int, int, int], int] = {}
        self._first = self._intern_store(beginning.contents)

    def run(self, *, states_max: int = 5_000_000) -> Result:
        """Explore the whole graph, or up to the first state that breaks a property."""
        result = Result(self._cell)
        runs_before = sum(tree.runs for tree in self._trees)
        count = len(self._cell.actors)
        floors = tuple(self._floors((), self._first, self._notes(i, 0)) for i in range(count))
        actors = tuple(self._arrive(i, 0) for i in range(count))
        start: State = (self._first, actors, self._cell.faults_max, self._cell.crashes_max, (), floors)
        came_from: dict[State, tuple[State, Move] | None] = {start: None}
        queue = deque([(start, 0)])
        while queue:
            state, depth = queue.popleft()
            result.depth = depth
            broken = None
            for move, following, wrong in self._moves(state):
                result.moves += 1
                broken = wrong
                if following not in came_from:
                    came_from[following] = (state, move)
                    broken = wrong or self._judge(state, following, move.actor)
                    queue.append((following, depth + 1))
                if broken is not None:
                    came_from[following] = (state, move)
                    result.counterexample = self._tell(broken, following, came_from)
                    break
            else:
                if all(node < 0 for node in state[1]) and (broken := self._judge_end(state)) is not None:
                    result.counterexample = self._tell(broken, state, came_from)
            if broken is not None:
                break
            assert len(came_from) <= states_max, f"the cell {self._cell.name!r} has more than {states_max} states: give it less to do"
        result.states = len(came_from)
        if result.counterexample is None:
            result.steps = sum(tree.verify() for tree in self._trees)
        result.runs = sum(tree.runs for tree in self._trees) - runs_before
        return result

    # ---- moves

    def _moves(self, state: State) -> Iterator[tuple[Move, State, str | None]]:
        """Everything that may happen next, with what is wrong with the move itself."""
        store, actors, faults, crashes, under_way, floors = state
        budget = (faults > 0) + 2 * (crashes > 0)
        for index, node in enumerate(actors):
            if node < 0:
                continue
            ways = self._ways.get((store, index, node, budget)) or self._find_ways(store, index, node, budget)
            wrong = self._wrong_to_ask(state, index, ways[0].move.request) if ways[0].move.request in self._deletes else None
            for move, after, becomes, faulty, crash, pending, broken in ways:
                changed = (*actors[:index], becomes, *actors[index + 1 :])
                landing = tuple(sorted((*under_way, move.request))) if pending else under_way
                heads = floors
                if (
                    becomes >= 0
                    and not crash
                    and (mine := self._floors(floors[index], after, self._notes(index, becomes))) is not floors[index]
                ):
                    heads = (*floors[:index], mine, *floors[index + 1 :])
                yield move, (after, changed, faults - faulty, crashes - crash, landing, heads), wrong or broken
        for position, request in enumerate(under_way):
            if position and under_way[position - 1] == request:
                continue
            rest = under_way[:position] + under_way[position + 1 :]
            _, after = self._effect(store, request)
            yield Move(-1, request, None, None), (after, actors, faults, crashes, rest, floors), self._broken_by(store, after, request)

    def _find_ways(self, store: int, index: int, node: int, budget: int) -> list[Way]:
        """Every way in which the next request of an actor may go, the calm one first; remembered. budget: 1 when there are faults left,
        and 2 more when there are crashes left."""
        cell, tree = self._cell, self._trees[index]
        step = tree.steps[node]
        assert step.request is not None
        request = self._intern_request(step.request)
        answer, after = self._effect(store, request)
        ways = [self._way(Move(index, request, None, answer), store, after, node)]
        site = step.site
        reached = step.request.key.startswith(cell.where)
        for fault, given, then, pending in self._faults(store, request, answer, after):
            if fault is not Fault.STALE or (reached and fault in cell.faults and cell.faults_max):
                self._coverage.possible.add((site, fault))
            if reached and fault in cell.faults and budget & (2 if fault in CRASHES else 1):
                ways.append(self._way(Move(index, request, fault, given), store, then, node, pending=pending, site=site))
        self._ways[store, index, node, budget] = ways
        return ways

    def _way(self, move: Move, store: int, after: int, node: int, *, pending: bool = False, site: str = "") -> Way:
        tree = self._trees[move.actor]
        crash = move.answer is None
        if move.answer is None:
            becomes = self._intern_ending(Ending(True, tree.steps[node].notes))
        else:
            becomes = self._arrive(move.actor, tree.child(node, move.answer, self._stores[after]))
        if move.fault is not None:
            self._coverage.fired.add((site, move.fault))
        return Way(move, after, becomes, move.fault is not None and not crash, crash, pending, self._broken_by(store, after, move.request))

    def _faults(self, store: int, request: int, answer: Answer, after: int) -> Iterator[tuple[Fault, Answer | None, int, bool]]:
        """(fault, answer or None for a crash, store afterwards, whether the request is still under way) for all that differ here."""
        asked = self._requests[request]
        lost = LOST if asked.kind == "put" else UNAVAILABLE
        yield Fault.BEFORE, lost, store, False
        yield Fault.CRASH_BEFORE, None, store, False
        if asked.kind in ("get", "head", "list"):
            former = stale(self._stores[store], asked)
            if former != answer:
                yield Fault.STALE, former, store, False
            return
        if asked.kind == "put":
            yield Fault.THROTTLE, REFUSED, store, False
            if after != store:
                again, twice = self._effect(after, request)
                yield Fault.TWICE, again, twice, False
        yield Fault.AFTER, lost, after, False
        yield Fault.LATER, lost, store, True
        yield Fault.ECHO, answer, after, True
        yield Fault.CRASH_AFTER, None, after, False

    def _arrive(self, index: int, node: int) -> int:
        step = self._trees[index].steps[node]
        return node if step.request is not None else self._intern_ending(Ending(False, step.notes))

    # ---- stores

    def _effect(self, store: int, request: int) -> tuple[Answer, int]:
        known = self._effects.get((store, request))
        if known is None:
            answer, contents = perform(self._stores[store], self._requests[request], self._cell.profile)
            after = store if contents is self._stores[store] else self._intern_store(contents)
            known = self._effects[store, request] = answer, after
        return known

    def _intern_store(self, contents: Contents) -> int:
        key = frozenset(contents.items())
        known = self._store_ids.get(key)
        if known is None:
            known = self._store_ids[key] = len(self._stores)
            self._stores.append(contents)
            self._facts.append(facts_of(contents))
            self._broken_stores.append(check_store(self._facts[known]))
        return known

    def _intern_request(self, request: Request) -> int:
        known = self._request_ids.get(request)
        if known is None:
            known = self._request_ids[request] = len(self._requests)
            self._requests.append(request)
            if request.kind == "delete":
                self._deletes.add(known)
        return known

    def _intern_ending(self, ending: Ending) -> int:
        known = self._ending_ids.get(ending)
        if known is None:
            known = self._ending_ids[ending] = len(self._endings)
            self._endings.append(ending)
        return -1 - known

    def _floors(self, floors: tuple[int, ...], store: int, notes: Sequence[Note]) -> tuple[int, ...]:
        """The heads of the log when the reads of an actor began, one for each that has."""
        began = [note for note in notes if type(note) is Began]
        missing = len(began) - len(floors)
        return floors + tuple(self._facts[store].head(note.log) for note in began[-missing:]) if missing else floors

    # ---- properties

    def _wrong_to_ask(self, state: State, index: int, request: int) -> str | None:
        """P8: what may be deleted is decided by the log, and by what is still under way."""
        facts = self._facts[state[0]]
        open_txns = {txn for other in state[4] for txn in could_commit(self._requests[other], facts)}
        return may_delete(self._requests[request], facts, open_txns, by=self._cell.actors[index].number)

    def _broken_by(self, before: int, after: int, request: int) -> str | None:
        """What a move itself breaks: P1, a slot never changes; P8, an intent does not come back; P13, a mirror is not written over."""
        if before == after:
            return None
        new = self._facts[after].logs
        for prefix, log in self._facts[before].logs.items():
            changed = [number for number, slot in log.slots.items() if prefix not in new or new[prefix].slots.get(number) != slot]
            if changed and not is_nameless(self._facts[before], prefix):
                return f"P1: slot {changed[0]} was changed or deleted"
        asked, was, now = self._requests[request], self._facts[before], self._facts[after]
        return restored_late(asked, was, now) or replaced(asked, was, now)

    def _judge(self, before: State, state: State, moved: int) -> str | None:
        """What a new state breaks. Where the store is as before, only the actor that moved can have broken anything."""
        store, actors, _, _, _, floors = state
        if store != before[0]:
            if self._broken_stores[store] is not None:
                return self._broken_stores[store]
            concerned: Sequence[int] = range(len(actors))
        else:
            concerned = (moved,) if moved >= 0 else ()
        for index in concerned:
            node = actors[index]
            key = store, index, node, floors[index]
            if key not in self._verdicts:
                self._verdicts[key] = self._judge_actor(store, index, node, floors[index])
            if self._verdicts[key] is not None:
                return self._verdicts[key]
        return None

    def _judge_actor(self, store: int, index: int, node: int, floors: tuple[int, ...]) -> str | None:
        actor = self._cell.actors[index]
        broken = check_notes(self._facts[store], actor, self._notes(index, node), floors)
        if broken is None and node >= 0 and self._solo_steps(store, index, node) > self._cell.solo_steps_max:
            return f"P11: {actor.name}, alone from here, does not end within {self._cell.solo_steps_max} requests"
        return broken

    def _judge_end(self, state: State) -> str | None:
        """At the end of a schedule without faults: nobody was refused."""
        if not self._cell.all_succeed or state[2:4] != (self._cell.faults_max, self._cell.crashes_max):
            return None
        for index, node in enumerate(state[1]):
            refused = [note for note in self._notes(index, node) if isinstance(note, Refused)]
            if refused:
                return f"P11: {self._cell.actors[index].name} ended with {refused[0].error} although nothing went wrong"
        return None

    def _notes(self, index: int, node: int) -> tuple[Note, ...]:
        return self._trees[index].steps[node].notes if node >= 0 else self._endings[-1 - node].notes

    def _solo_steps(self, store: int, index: int, node: int) -> int:
        """How many requests an actor needs to its end when nothing else happens."""
        path: list[tuple[int, int, int]] = []
        while True:
            key = store, index, node
            known = self._solo.get(key)
            if known is not None or len(path) > self._cell.solo_steps_max:
                break
            path.append(key)
            step = self._trees[index].steps[node]
            if step.request is None:
                known = -1
                break
            answer, store = self._effect(store, self._intern_request(step.request))
            node = self._trees[index].child(node, answer, self._stores[store])
        count = self._cell.solo_steps_max + 1 if known is None else known
        for key in reversed(path):
            count += 1
            self._solo[key] = count
        return count

    # ---- the story

    def _tell(self, broken: str, state: State, came_from: Mapping[State, tuple[State, Move] | None]) -> Counterexample:
        notes = tuple((actor.name, self._notes(i, state[1][i])) for i, actor in enumerate(self._cell.actors))
        steps = []
        at: State = state
        while (before := came_from[at]) is not None:
            at, move = before
            name = "network" if move.actor < 0 else self._cell.actors[move.actor].name
            steps.append((name, self._requests[move.request], move.fault, move.answer))
        return Counterexample(broken, tuple(reversed(steps)), notes)
