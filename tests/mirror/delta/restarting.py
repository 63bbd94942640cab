"""A Delta mirror that begins again beside other processes: each slot of a history as a change and as a restart, and who writes them.

With a reader that does what Delta's specification says, and is fast enough to read every version at every moment.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import msgspec
import pyarrow.parquet as pq
import pyroaring

from fileio.schemes import open_backend
from fileio.store import FileIO
from fileio.testing.env import FakeEnv
from fileio.testing.faults import Fault, FaultyBackend, Request, Rule
from objcat.mirror.delta.actions import DeltaVector, checkpoint_key, checkpoint_version, commit_key, commit_version
from objcat.mirror.delta.mirror import DeltaMirror
from objcat.mirror.delta.vectors import vector_name
from objcat.mirror.model import MirrorChange, encoded_path
from tests.mirror.delta.synthetic import History, described

NEWEST = 7


@dataclass
class Written:
    """A history of which each slot can be written as a change, or as a restart."""

    table: History
    changes: list[MirrorChange] = field(default_factory=list)

    def __post_init__(self) -> None:
        table = self.table
        note = self.changes.append
        note(table.begin())
        a, b = (table.file([{"id": 100 * number + row, "v": "x"} for row in range(8)]) for number in range(2))
        note(table.add(a, b))
        note(table.mask({a.file.path: {1}}))
        note(table.mask({a.file.path: {2}, b.file.path: {5}}))
        note(table.add(table.file([{"id": 900}])))
        note(table.mask({b.file.path: {0}}))
        note(table.mask({a.file.path: {3}}))
        note(table.remove(b.file.path))

    def whole(self, slot: int) -> MirrorChange:
        """The restart at a slot."""
        state = self.table.states[slot]
        added = tuple(described(self.table.every[path], state[path]) for path in sorted(state, key=encoded_path))
        return self.table.change(slot=slot, restarts=True, added=added)

    def mirror(self) -> DeltaMirror:
        """Of another process."""
        return self.table.mirror()

    def write(self, *slots: int) -> None:
        mirror = self.mirror()
        mirror.newest()
        for slot in slots:
            mirror.write(self.changes[slot])


Other = Callable[[Written], Callable[[], object]]
"""Another process: it looks at the mirror, and returns what it does later."""


def restart_at(slot: int, *after: int) -> Other:
    """It begins the mirror again at a slot, and writes the ones after it."""

    def prepared(written: Written) -> Callable[[], object]:
        return partial(write_all, written.mirror(), [written.whole(slot), *(written.changes[number] for number in after)])

    return prepared


def write_all(mirror: DeltaMirror, changes: Sequence[MirrorChange]) -> None:
    """Put slots one after the other."""
    for change in changes:
        mirror.write(change)


def follow(*slots: int) -> Other:
    """It knows the newest slot, and puts the next ones."""

    def prepared(written: Written) -> Callable[[], object]:
        mirror = written.mirror()
        mirror.newest()
        return partial(write_all, mirror, [written.changes[slot] for slot in slots])

    return prepared


DEATHS: dict[str, Callable[[str], bool]] = {
    "never": lambda _: False,
    "before its checkpoint": lambda key: key.endswith(".checkpoint.parquet"),
    "before its hint": lambda key: key.endswith("_last_checkpoint"),
}


def restarting(written: Written, dies: str, meanwhile: Callable[[Request], None]) -> DeltaMirror:
    """A process whose requests are met by something, and that may die."""
    rule = Rule(fault=Fault.CRASH_BEFORE, kinds=frozenset({"put"}), key=DEATHS[dies])
    backend = FaultyBackend(open_backend(written.table.fileio.url, {}), [rule], before=meanwhile)
    return DeltaMirror(replace(written.table.place, fileio=FileIO(backend, env=FakeEnv(77))))


KNOWN = {"deletionVectors", "columnMapping", "typeWidening", "timestampNtz"}
"""Features of readers that exist."""


class Refused(Exception):
    """A reader cannot read a version: the log lacks something, or names a feature that it does not know."""


def versions(table: History) -> list[int]:
    """The versions that have a commit."""
    return sorted(found for key in table.fileio.list_keys("_delta_log/") if (found := commit_version(key)) is not None)


def replay(table: History, version: int) -> dict[str, set[int]]:
    """The files of a version with their masked rows, as Delta's specification says. Raises Refused.

    It begins at the newest checkpoint up to the version, or at version 0, and applies commits without a gap. A file that two actions add
    with different vectors is there twice.
    """
    keys = list(table.fileio.list_keys("_delta_log/"))
    base = max((found for key in keys if (found := checkpoint_version(key)) is not None and found <= version), default=-1)
    actions: list[list[dict[str, Any]]] = []
    if base >= 0:
        data = table.fileio.read(checkpoint_key(table.place, base))
        actions.append(pq.read_table(io.BytesIO(data)).to_pylist())
    for number in range(base + 1, version + 1):
        if commit_key(table.place, number) not in keys:
            raise Refused(f"{number} is missing")
        actions.append([json.loads(line) for line in table.fileio.read(commit_key(table.place, number)).splitlines()])
    live: dict[tuple[str, str], dict[str, Any]] = {}
    features: set[str] = set()
    for commit in actions:
        touched = [(kind, name_of(one[kind])) for one in commit for kind in ("add", "remove") if one.get(kind)]
        assert len(touched) == len({name for _, name in touched}), "one commit adds and removes the same file with the same vector"
        for kind in ("remove", "add"):
            for one in commit:
                if one.get(kind):
                    live.pop(name_of(one[kind]), None)
                    live |= {name_of(one[kind]): one[kind]} if kind == "add" else {}
        for one in commit:
            features = set(one["protocol"].get("readerFeatures") or ()) if one.get("protocol") else features
    if features - KNOWN:
        raise Refused(f"nobody knows {features - KNOWN}")
    files: dict[str, set[int]] = {}
    for (path, _), add in live.items():
        assert path not in files, f"version {version} has the rows of {path} twice"
        files[path] = masked_by(table, add.get("deletionVector"))
    return files


def name_of(action: dict[str, Any]) -> tuple[str, str]:
    """What identifies a file in Delta: its path, and its vector."""
    vector = action.get("deletionVector") or {}
    return action["path"], f"{vector.get('pathOrInlineDv')}@{vector.get('offset')}"


def masked_by(table: History, vector: dict[str, Any] | None) -> set[int]:
    if vector is None or vector["storageType"] is None:
        return set()
    data = table.fileio.read(vector_name(msgspec.convert(vector, DeltaVector)))
    begin = vector["offset"] + 4 + 4
    return set(pyroaring.BitMap64.deserialize(data[begin : begin + vector["sizeInBytes"] - 4]))
