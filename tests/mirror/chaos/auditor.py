"""A process that reads, all the time, every metadata file of a mirror that exists, and compares it with a scan of the table at its slot."""

from __future__ import annotations

import json
import random
import time
import traceback
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import objcat
from objcat.errors import SnapshotExpired
from tests.mirror.chaos.reading import MirrorReader
from tests.mirror.histories import Rows, rows_at

TABLE = "shop.people"
PATIENCE = 4
"""Attempts to read a slot. Cleaning, or a restart, may take metadata away while it is read."""
PAUSE_S = 0.4
COMPARED = "compared.json"


@dataclass(slots=True)
class MirrorVerdict:
    """problems: one sentence each. counts: what was compared. slots: different metadata files that were compared, by format."""

    problems: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    slots: Counter[str] = field(default_factory=Counter)


class MirrorAuditor:
    """Compares mirrors with the table. Its handles meet no faults."""

    def __init__(self, url: str, options: Mapping[str, Any], directory: Path) -> None:
        self._table = objcat.connect(url, options).table(TABLE)
        self._reader = MirrorReader(self._table, directory)
        self._expected: dict[int, Rows] = {}
        self._seen: set[tuple[str, int]] = set()
        self.verdict = MirrorVerdict()

    def round(self, chance: random.Random) -> None:
        """Read what is new, the newest slots again, and an old one again."""
        for form, slots in self._reader.slots().items():
            new = [slot for slot in slots if (form, slot) not in self._seen]
            old = [slot for slot in slots[:-2] if slot not in new]
            for slot in {*new, *slots[-2:], *chance.sample(old, min(1, len(old)))}:
                self.compare(form, slot)

    def all(self) -> None:
        """Read every metadata file."""
        for form, slots in self._reader.slots().items():
            for slot in slots:
                self.compare(form, slot)

    def compare(self, form: str, slot: int) -> None:
        """Compare one slot, if it can still be read."""
        error: Exception | None = None
        for attempt in range(PATIENCE):
            if attempt:
                time.sleep(PAUSE_S)
                self.verdict.counts["read again"] += 1
            if not self._is_there(form, slot):
                self.verdict.counts["gone"] += 1
                return
            try:
                found = self._reader.readers[form](slot)
                expected = self._rows(slot)
            except SnapshotExpired:
                return
            except Exception as caught:  # noqa: BLE001 - whatever readers raise
                error = caught
                continue
            self._seen.add((form, slot))
            self.verdict.counts["compared"] += 1
            if found != expected:
                self.verdict.problems.append(f"{form} at slot {slot}: {difference(found, expected)}")
            return
        self.verdict.problems.append(f"{form} at slot {slot} cannot be read: {error!r}")

    def finish(self) -> MirrorVerdict:
        self.verdict.slots = Counter(form for form, _ in self._seen)
        return self.verdict

    def _is_there(self, form: str, slot: int) -> bool:
        """Whether a reader may begin with a slot."""
        slots = self._reader.slots()[form]
        if slot not in slots or not self._table.refresh().log.marks(self._table.id).is_readable(slot):
            return False
        if form == "delta" and not self._reader.has_beginning(slot):
            self.verdict.counts["before its checkpoint"] += 1
            return False
        return True

    def _rows(self, slot: int) -> Rows:
        if slot not in self._expected:
            self._expected[slot] = rows_at(self._table, slot)
        return self._expected[slot]


def difference(found: Rows, expected: Rows) -> str:
    """The rows that only one side has, a few of them."""
    ours, theirs = (Counter(json.dumps(row, sort_keys=True) for row in rows) for rows in (found, expected))
    return f"readers get {sorted((ours - theirs).elements())[:4]}, and not {sorted((theirs - ours).elements())[:4]}"


def write_whole(path: Path, said: Mapping[str, Any]) -> None:
    """Write a file that others read at any time."""
    new = path.with_suffix(".new")
    new.write_text(json.dumps(said))
    new.rename(path)


def compared(directory: Path) -> Counter[str]:
    """How many different metadata files the auditor of a run has compared so far, by format."""
    path = directory / COMPARED
    return Counter(json.loads(path.read_text())) if path.exists() else Counter()


def audit(url: str, options: Mapping[str, Any], directory: str, seed: int) -> None:
    """The process. It ends when the file `stop` is there, or at the first problem, and leaves its verdict in `verdict.json`."""
    place, chance = Path(directory), random.Random(seed)
    verdict = MirrorVerdict()
    try:
        auditor = MirrorAuditor(url, options, place / "copy")
        verdict = auditor.verdict
        while not (place / "stop").exists() and not verdict.problems:
            auditor.round(chance)
            write_whole(place / COMPARED, auditor.finish().slots)
            time.sleep(0.05)
        verdict = auditor.finish()
    except BaseException:
        verdict.problems.append(f"the auditor broke: {traceback.format_exc()}")
        raise
    finally:
        said = {"problems": verdict.problems, "counts": dict(verdict.counts), "slots": dict(verdict.slots)}
        write_whole(place / "verdict.json", said)
