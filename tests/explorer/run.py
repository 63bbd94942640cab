"""Runs cells: what they begin with, and the code under test as they want it."""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import cache
from importlib import import_module
from multiprocessing import get_context
from typing import TypeAlias
from unittest import mock

from fileio.memory import MemoryBackend
from fileio.store import FileIO
from objcat.metadata.replay import TablesReducer
from objcat.metadata.table_state import Tables
from objcat.timeline.entry import decode_entry
from objcat.timeline.log_state import LogState
from objcat.timeline.log_view import LogView, Timeline
from tests.explorer.actors import Actor, Broke, Refused, Tree
from tests.explorer.engine import Beginning, Cell, Coverage, Result, Search, Settings, Universe
from tests.explorer.roles import CREATED, PREFIX
from tests.explorer.roles_derived import toy_queries
from tests.explorer.roles_merges import evaluate_added, unchecked
from tests.explorer.store import Contents, Profile, perform, settled
from tests.explorer.toyfiles import toy_files


@cache
def beginning(profile: Profile, prelude: tuple[Actor, ...] = CREATED, settings: Settings = ()) -> Beginning:
    """What the actors of a prelude leave, one after the other in calm weather; made by the code itself."""
    start = Beginning({}, None)
    for actor in prelude:
        tree = Tree(actor, profile, start.warm)
        contents, node = start.contents, 0
        while (request := tree.steps[node].request) is not None:
            answer, contents = perform(contents, request, profile)
            node = tree.child(node, answer, contents)
        refused = [note for note in tree.steps[node].notes if isinstance(note, (Refused, Broke))]
        assert not refused, f"{actor.name} fails in calm weather: {refused}"
        start = Beginning(settled(contents), _view(contents))
    return start


def _view(contents: Contents) -> LogView[Tables]:
    found = {key: place.now.data for key, place in contents.items() if place.now is not None and key.startswith(f"{PREFIX}log/")}
    entries = [decode_entry(data, key=key) for key, data in sorted(found.items())]
    store = FileIO(MemoryBackend("beginning"))
    for key, data in found.items():
        store.put(key.removeprefix(PREFIX), data)  # A RESTORE is replayed from what was there before.
    timeline = Timeline(store, TablesReducer())
    return timeline.advance(LogView(LogState(), {}), entries)


@contextmanager
def world_of(cell: Cell) -> Iterator[None]:
    """The code under test as a cell wants it."""
    with toy_files(), toy_queries(), ExitStack() as stack:
        stack.enter_context(mock.patch("objcat.table.merge.evaluate", evaluate_added))
        stack.enter_context(mock.patch("objcat.table.merge.check_program", unchecked))
        for module, name, value in cell.settings:
            stack.enter_context(mock.patch.object(import_module(module), name, value))
        yield


class Explorer:
    """Runs cells, each once, and remembers what came of them."""

    def __init__(self) -> None:
        self.universe = Universe()
        self.results: dict[str, Result] = {}
        self._pool: ProcessPoolExecutor | None = None
        self._begun: dict[str, Future[Batch]] = {}

    def explore(self, cell: Cell) -> Result:
        """The result of a cell."""
        if cell.name not in self.results:
            if cell.name in self._begun:
                results, coverage = self._begun[cell.name].result()
                self.universe.coverage.possible |= coverage.possible
                self.universe.coverage.fired |= coverage.fired
                self.results[cell.name] = results[cell.name]
            else:
                self.results[cell.name] = self._run(cell)
        return self.results[cell.name]

    def begin(self, cells: Sequence[Cell], *, processes: int = 2) -> None:
        """Run cells in processes of their own. Those that begin alike go together: they share what is known of their actors."""
        alike: dict[object, list[Cell]] = {}
        for cell in cells:
            alike.setdefault((cell.prelude, cell.settings, cell.profile), []).append(cell)
        share = _cost(cells) / processes
        batches = [batch for group in alike.values() for batch in _divided(group, share)]
        self._pool = ProcessPoolExecutor(processes, mp_context=get_context("spawn"), initializer=_begin_worker)
        for batch in sorted(batches, key=_cost, reverse=True):
            begun = self._pool.submit(_run_in_worker, batch)
            self._begun |= dict.fromkeys((cell.name for cell in batch), begun)

    def close(self) -> None:
        """Stop what is under way."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def _run(self, cell: Cell) -> Result:
        gc.disable()  # millions of tuples live until the end of the search: looking through them for garbage is half of the time
        try:
            with world_of(cell):
                start = beginning(cell.profile, cell.prelude, cell.settings)
                return Search(cell, start, self.universe).run()
        finally:
            gc.enable()


def _cost(cells: Sequence[Cell]) -> int:
    """About how long cells take: a state of those that begin with a history takes longer, since their actors do more."""
    return sum(500 + cell.states_min * (5 if len(cell.prelude) > 1 else 1) for cell in cells)


def _divided(cells: list[Cell], most: float) -> list[list[Cell]]:
    """Cells in parts that cost no more than that, as far as whole cells allow; the biggest first, which is what a process begins with."""
    parts: list[list[Cell]] = [[]]
    for cell in sorted(cells, key=lambda cell: _cost([cell]), reverse=True):
        if parts[-1] and _cost([*parts[-1], cell]) > most:
            parts.append([])
        parts[-1].append(cell)
    return parts


Batch: TypeAlias = tuple[dict[str, Result], Coverage]


def _begin_worker() -> None:
    logging.getLogger("objcat").setLevel(logging.CRITICAL)


def _run_in_worker(cells: Sequence[Cell]) -> Batch:
    explorer = Explorer()
    return {cell.name: explorer.explore(cell) for cell in cells}, explorer.universe.coverage
