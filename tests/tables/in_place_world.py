"""Random histories of sources of a table in place, and the model of what the table answers after each step."""

from __future__ import annotations

import contextlib
import random
from typing import Any

import pytest

import objcat
from fileio.store import FileIO
from objcat.errors import SourceFileChanged
from tests.tables.in_place import FORMATS, LINE, SCHEMA, Row, in_order, read, rows

STEPS = 40
ACTS = ["add", "add", "change", "remove", "refresh", "refresh", "strict", "delete", "read", "clean", "choose", "make", "promote"]
COLUMNS = [(), ("id",), ("name",), ("name", "id")]
"""What may be precomputed. Queries of these columns and of others are asked."""


class World:
    """Sources, a table over them, and what it has to answer.

    taken: what the table knows of each file: its rows, and whether it is still that file. There are no rows but those.
    promoted: the files whose rows are the table's own by now.
    """

    def __init__(self, drawn: random.Random, store: FileIO, lake: objcat.Lake, kind: str, name: str) -> None:
        self.drawn, self.store, self.kind = drawn, store, kind
        self.files: dict[str, list[Row]] = {}
        self.taken: dict[str, list[Row]] = {}
        self.is_same: dict[str, bool] = {}
        self.promoted: set[str] = set()
        self.next = 0
        self.folder = f"in-{name}"
        source = objcat.Files(
            f"{store.url}/{self.folder}/part={{part}}/*.{kind}",
            format=kind,  # type: ignore[arg-type]
            line=LINE if kind == "text" else "",
            precompute=drawn.choice(COLUMNS),
        )
        self.table = lake.create_table(name, SCHEMA, source=source)

    def read(self, **asked: Any) -> list[Row]:
        """The rows of a scan in order, read with an engine. Raises SourceFileChanged."""
        return read(self.table, **asked)

    def put(self, key: str) -> None:
        found = rows(self.next, self.next + self.drawn.randrange(1, 30))
        self.next += len(found)
        self.store.put(f"{self.folder}/{key}", FORMATS[self.kind](found))
        self.files[key] = [{**row, "part": key.partition("/")[0].removeprefix("part=")} for row in found]
        if key in self.is_same and key not in self.promoted:
            self.is_same[key] = False

    def remove(self, key: str) -> None:
        self.store.delete([f"{self.folder}/{key}"])
        del self.files[key]
        if key in self.is_same and key not in self.promoted:
            self.is_same[key] = False

    def step(self) -> None:
        match self.drawn.choice(ACTS):
            case "add":
                self.put(f"part={self.drawn.randrange(3)}/{len(self.files)}-{self.drawn.randrange(10**6)}.{self.kind}")
            case "change" if self.files:
                self.put(self.drawn.choice(sorted(self.files)))
            case "remove" if self.files:
                self.remove(self.drawn.choice(sorted(self.files)))
            case "refresh":
                self.table.refresh_files(on_change="replace", on_missing="drop", unsafe_unmask=True)
                kept = {key: self.taken[key] for key in {*self.files, *self.promoted} if self.is_same.get(key) is True}
                self.taken = {key: list(found) for key, found in self.files.items() if key not in kept} | kept
                self.is_same = dict.fromkeys(self.taken, True)
            case "strict":
                self.refresh_strictly()
            case "delete":
                self.delete()
            case "clean":
                self.table.maintenance.clean(keep_slots=1)
            case "choose":
                self.table.alter.set_precomputed(self.drawn.choice(COLUMNS))
            case "promote":
                part = self.drawn.randrange(3)
                promoted = self.table.maintenance.promote(where=f"part = '{part}'")
                of_part = {key for key in self.taken if key.startswith(f"part={part}/")} - self.promoted
                same = {key for key in of_part if self.is_same[key]}
                assert (promoted.files, promoted.unsettled) == (len(same), len(of_part - same))
                self.promoted |= same
            case "make":
                done = self.table.maintenance.precompute()
                assert done.unsettled <= sum(not same for same in self.is_same.values())
        self.check()

    def refresh_strictly(self) -> None:
        if all(self.is_same.values()):
            self.table.refresh_files()
            self.taken |= {key: list(found) for key, found in self.files.items() if key not in self.taken}
            self.is_same = dict.fromkeys(self.taken, True)
            return
        slot = self.table.refresh().slot
        with pytest.raises(SourceFileChanged):
            self.table.refresh_files()
        assert self.table.refresh().slot == slot

    def delete(self) -> None:
        rest = self.drawn.randrange(7)
        gone = [key for key, found in self.taken.items() if any(row["id"] % 7 == rest for row in found)]
        where = f"name = 'n{rest}'" if self.drawn.random() < 0.5 else f"id % 7 = {rest}"
        try:
            self.table.delete(where)
        except SourceFileChanged:
            assert not all(self.is_same.values())
            return
        assert all(self.is_same[key] for key in gone), "rows of a file that changed were looked at"
        self.taken = {key: [row for row in found if row["id"] % 7 != rest] for key, found in self.taken.items()}

    def check(self) -> None:
        expected = [row for found in self.taken.values() for row in found]
        if all(self.is_same.values()):
            assert self.read() == in_order(expected)
            low = self.drawn.randrange(max(1, self.next))
            part = str(self.drawn.randrange(3))
            some = [row for row in expected if row["id"] >= low and row["part"] == part]
            assert self.read(where=f"id >= {low} and part = '{part}'") == in_order(some)
            rest = self.drawn.randrange(7)
            few = [row for row in some if row["id"] % 7 == rest]
            assert self.read(where=f"id >= {low} and part = '{part}' and name = 'n{rest}'") == in_order(few)
            assert self.read(columns=["id", "part"]) == in_order({"id": row["id"], "part": row["part"]} for row in expected)
            return
        changed = sorted(key for key, same in self.is_same.items() if not same and self.taken[key])
        if changed:
            with pytest.raises(SourceFileChanged, match=self.folder):
                self.read()
        with contextlib.suppress(SourceFileChanged):
            assert self.read(columns=["id"]) == in_order({"id": row["id"]} for row in expected), "of the files that were taken"
        for key in [key for key, same in self.is_same.items() if same][:3]:
            if ids := [row["id"] for row in self.taken[key]]:
                # A filter may leave out the changed files by their bounds. Rows of others are never made up.
                with contextlib.suppress(SourceFileChanged):
                    found = self.read(where=f"id between {ids[0]} and {ids[-1]}")
                    assert found == in_order(row for row in expected if ids[0] <= row["id"] <= ids[-1])
