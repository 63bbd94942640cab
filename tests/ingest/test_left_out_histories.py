"""Random histories of a folder and a table without a key: files come, are overwritten and cannot be taken, tables are set aside, requests
come between the looks, and processes are killed. Each file has to be there once, in one version."""

from __future__ import annotations

import collections
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from objcat.ingest.folder.looks import FolderLooks
from objcat.ingest.requests import RequestKind, add_request
from tests.ingest.landing import Landing
from tests.ingest.test_left_out import DELETES

MISSPELLED = 'mask = { emial = "null" }'
REQUESTS: tuple[RequestKind, ...] = ("left_out", "left_out", "resnapshot", "resnapshot_all")


class History:
    """A folder and what was done to it.

    Args:
        folder: for files, lake and configuration.
        chance: decides.
    """

    def __init__(self, folder: Path, chance: random.Random) -> None:
        self.landing = Landing(folder)
        self.done: list[str] = []
        self._chance = chance
        self._route = ""
        self._versions: dict[int, int] = {}
        self._unfit: set[int] = set()
        self.configure("")
        self.put(1)

    def configure(self, route: str) -> None:
        """Change the route, and how long a batch waits."""
        self._route = route
        self.landing.configure(key=[], files=DELETES, route=route, more="[dead_letters]\nrecords_max = 100000\n")
        text = self.landing.config_path.read_text().replace("batch_s = 0.05", f"batch_s = {self._chance.choice([0.0, 0.05, 3.0])}")
        self.landing.config_path.write_text(text)

    def put(self, number: int, *, is_fit: bool = True) -> None:
        """Write a file, or overwrite it. One that is not fit has a delete, which no table without a key can take."""
        version = self._versions[number] = self._versions.get(number, 0) + 1
        self._unfit = self._unfit - {number} if is_fit else self._unfit | {number}
        rows: list[dict[str, Any]] = [{"id": number, "version": version, "row": row, "op": "i", "email": "x"} for row in range(2)]
        self.landing.parquet(f"log/{number}.parquet", rows if is_fit else [*rows, {**rows[0], "op": "d"}])

    def step(self) -> None:
        """Do something."""
        kind = self._chance.choice(["new"] * 4 + ["again"] * 2 + ["ask"] * 3 + ["skip", "route"])
        number = self._chance.choice(list(self._versions))
        what = self._chance.choice(REQUESTS)
        self.done.append(f"{kind} {what if kind == 'ask' else number}")
        if kind in ("new", "again"):
            self.put(number if kind == "again" else len(self._versions) + 1, is_fit=self._chance.random() < 0.8)
        elif kind == "ask":
            add_request(self.landing.lake, self.landing.config(), what, "" if what == "resnapshot_all" else "log")
        elif kind == "skip":
            add_request(self.landing.lake, self.landing.config(), "skip", f"log/{number}.parquet")
        else:
            self.configure("" if self._route else MISSPELLED)

    def correct(self) -> None:
        """Let everything fit, and ask for what was left out."""
        self.configure("")
        self.landing.once()
        for number in sorted(self._unfit):
            self.put(number)
        for _ in range(2):
            # A request to skip that still waits may leave one more file out.
            add_request(self.landing.lake, self.landing.config(), "left_out", "log")
            self.landing.once()

    def check(self, *, is_over: bool = False) -> None:
        """No file is there twice or in part; in the end none is missing."""
        if "land.log" not in self.landing.lake.tables():
            assert not is_over
            return
        found: dict[int, collections.Counter[int]] = collections.defaultdict(collections.Counter)
        for row in self.landing.rows("log"):
            found[row["id"]][row["version"]] += 1
        for number, versions in found.items():
            assert list(versions.values()) == [2], (number, versions, self.done)
        missing = self._versions.keys() - found.keys()
        assert not (is_over and missing), (missing, self.landing.record(), self.done)


@pytest.mark.parametrize("seed", range(6))
def test_each_file_is_there_once(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(seed)
    history = History(tmp_path, chance)
    between: list[Callable[[], None]] = []
    look = FolderLooks.look

    def looked(self: Any, number: int) -> Any:
        found = look(self, number)
        if between:
            between.pop()()
        return found

    monkeypatch.setattr(FolderLooks, "look", looked)
    history.landing.once()
    for _ in range(chance.randint(5, 9)):
        for _ in range(chance.randint(1, 3)):
            history.step()
        history.done.append("run")
        if chance.random() < 0.35:
            history.landing.killed_after_commits(chance.randint(0, 2))
        else:
            between += [history.step] * chance.choice([0, 0, 1, 2])
            history.landing.once()
            between.clear()
        history.check()
    history.correct()
    history.check(is_over=True)
