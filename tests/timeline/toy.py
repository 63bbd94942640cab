"""A small replay: one dict of texts, in shards of JSON, with what a table's replay must get right and nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from fileio.contract import Create, Overwrite, require_written
from fileio.errors import NotFound
from fileio.memory import MemoryBackend
from fileio.store import FileIO
from fileio.testing.env import FakeEnv
from objcat.errors import CheckpointCollected
from objcat.timeline.attempt import CommitAttempt
from objcat.timeline.checkpoint import HINT_KEY, NULL, read_hint
from objcat.timeline.commit import Committer
from objcat.timeline.entry import Action, Entry, Footprint, Txn, new_txn
from objcat.timeline.json_objects import encode_object
from objcat.timeline.log_state import LogState
from objcat.timeline.log_view import LogView, Timeline

TABLE = "t"
SHARDS_MAX = 3


@dataclass(frozen=True, slots=True)
class Toy:
    """shards: paths, the oldest first. overlay: what was set since they were written."""

    shards: tuple[str, ...] = ()
    overlay: Mapping[str, int] = field(default_factory=dict)


class ToyReducer:
    """What the changes `{"t": {"key": value}}` mean."""

    def begin(self) -> Toy:
        return Toy()

    def advance(self, state: Toy, entry: Entry, at: Callable[[int], Toy]) -> Toy:
        footprint = entry.footprint.get(TABLE)
        if footprint is not None and footprint.restores is not None:
            return at(footprint.restores)
        if TABLE not in entry.changes:
            return state
        return replace(state, overlay={**state.overlay, **json.loads(bytes(entry.changes[TABLE]))})

    def save(self, fileio: FileIO, state: Toy, folder: str) -> tuple[msgspec.Raw, Toy]:
        if len(state.shards) >= SHARDS_MAX:
            state = Toy((), rows_of(fileio, state))
        if state.overlay:
            path = f"{folder}{fileio.env.new_id()}.json"
            require_written(fileio.put(path, json.dumps(dict(state.overlay)).encode(), Create()), path)
            state = Toy((*state.shards, path))
        return msgspec.Raw(json.dumps(state.shards).encode()), state

    def load(self, payload: msgspec.Raw) -> Toy:
        return Toy(tuple(json.loads(bytes(payload))))

    def objects(self, payload: msgspec.Raw) -> frozenset[str]:
        return frozenset(json.loads(bytes(payload)))


def rows_of(fileio: FileIO, state: Toy) -> dict[str, int]:
    """All that the state says. Reads its shards."""
    rows: dict[str, int] = {}
    for path in state.shards:
        try:
            rows |= json.loads(fileio.read(path))
        except NotFound as error:
            raise CheckpointCollected(f"{path} was collected: open again") from error
    return rows | dict(state.overlay)


def open_toy(fileio: FileIO) -> Timeline[Toy]:
    return Timeline(fileio, ToyReducer())


def commit(fileio: FileIO, log: LogState, *, txn: Txn | None = None, **fields: Any) -> Entry:
    """One commit above `log`. fields: of the candidate, in place of those of a write of one row."""
    txn = txn or new_txn(fileio.env)
    wanted: dict[str, Any] = {
        "action": Action.DELTA_COMMIT,
        "changes": {TABLE: msgspec.Raw(json.dumps({f"k{log.slot % 7}": log.slot}).encode())},
        "footprint": {TABLE: Footprint()},
    } | fields
    return Committer(fileio).commit(CommitAttempt(txn=txn, base=log, **wanted)).entry


def grow(timeline: Timeline[Toy], count: int, *, publish: bool = True, view: LogView[Toy] | None = None) -> LogView[Toy]:
    """A handle that commits `count` times, and publishes checkpoints as it goes."""
    kept = [timeline.open() if view is None else view]

    def keep(published: LogView[Toy]) -> None:
        kept[0] = timeline.adopt_checkpoint(kept[0], published)

    for _ in range(count):
        kept[0] = timeline.advance(kept[0], [commit(timeline.fileio, kept[0].log)])
        if publish:
            timeline.after_commit(kept[0], keep)
    return kept[0]


def bare_hint(fileio: FileIO) -> None:
    """Make the hint carry nothing, as those of older writers: then a reader needs the root that it names."""
    hint, _ = read_hint(fileio)
    assert hint is not None
    fileio.put(HINT_KEY, msgspec.json.encode(msgspec.structs.replace(hint, carried=NULL)), Overwrite())


def digested(carried: Mapping[str, Any]) -> msgspec.Raw:
    """What a hint carries, with a digest of its own."""
    fields = {name: value for name, value in carried.items() if name != "digest"}
    return msgspec.Raw(encode_object(msgspec.defstruct("Fields", list(fields))(**fields)))


def clone(plain: FileIO, name: str, *, seed: int) -> FileIO:
    """The same log in a store of its own, for somebody with identifiers of his own."""
    copied = FileIO(MemoryBackend(name), env=FakeEnv(seed))
    for key in plain.list_keys():
        copied.put(key, plain.read(key), Create())
    return copied


def rows_at(slot: int) -> dict[str, int]:
    """What the rows of `grow` are as of a slot."""
    return {f"k{s % 7}": s for s in range(-1, slot)}


def assert_same(timeline: Timeline[Toy], views: Sequence[LogView[Toy]]) -> None:
    """All views mean the same, whatever they stand on."""
    first = views[0]
    for view in views[1:]:
        assert view.log == first.log
        assert rows_of(timeline.fileio, view.state) == rows_of(timeline.fileio, first.state)
