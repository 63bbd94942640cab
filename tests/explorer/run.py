"""Runs cells: what they begin with, and the code under test as they want it."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from importlib import import_module
from unittest import mock

from fileio.memory import MemoryBackend
from fileio.store import FileIO
from objcat.table import Tables, TablesFold
from objcat.timeline import LogState, Timeline, View
from objcat.timeline.entry import decode_entry
from tests.explorer.actors import Actor, Broke, Refused, Tree
from tests.explorer.engine import Beginning, Cell, Result, Search, Settings, Universe
from tests.explorer.roles import CREATED, PREFIX
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
            node = tree.child(node, answer)
        refused = [note for note in tree.steps[node].notes if isinstance(note, (Refused, Broke))]
        assert not refused, f"{actor.name} fails in calm weather: {refused}"
        start = Beginning(settled(contents), _view(contents))
    return start


def _view(contents: Contents) -> View[Tables]:
    found = {key: place.now.data for key, place in contents.items() if place.now is not None and key.startswith(f"{PREFIX}log/")}
    entries = [decode_entry(data, key=key) for key, data in sorted(found.items())]
    timeline = Timeline(FileIO(MemoryBackend("beginning")), TablesFold())
    return timeline.advance(View(LogState(), {}), entries)


@contextmanager
def world_of(cell: Cell) -> Iterator[None]:
    """The code under test as a cell wants it."""
    with toy_files(), ExitStack() as stack:
        for module, name, value in cell.settings:
            stack.enter_context(mock.patch.object(import_module(module), name, value))
        yield


class Explorer:
    """Runs cells, each once, and remembers what came of them."""

    def __init__(self) -> None:
        self.universe = Universe()
        self.results: dict[str, Result] = {}

    def explore(self, cell: Cell) -> Result:
        """The result of a cell."""
        if cell.name not in self.results:
            gc.disable()  # millions of tuples live until the end of the search: looking through them for garbage is half of the time
            try:
                with world_of(cell):
                    start = beginning(cell.profile, cell.prelude, cell.settings)
                    self.results[cell.name] = Search(cell, start, self.universe).run()
            finally:
                gc.enable()
        return self.results[cell.name]
