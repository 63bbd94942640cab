"""The slots that readers of a mirror can ask for, as its own metadata says, and the check that none is missing."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.engines.histories import History

SHOWN_MIN = 8
"""A mirror that waited for a time shows at least so many slots."""


@dataclass(frozen=True)
class ShownSlots:
    """Slots of one mirror.

    newest: as readers find it. travel: by the newest metadata. pinned: with metadata of their own.
    """

    newest: int
    travel: Sequence[int]
    pinned: Sequence[int]

    def by(self, way: str) -> Sequence[int]:
        """The slots of a way to older ones."""
        return self.travel if way == "travel" else self.pinned


def shown_slots(folder: Path, form: str, readable: Collection[int]) -> ShownSlots:
    """What the mirror of a format shows, of the slots that objcat can read."""
    if form == "delta":
        log = folder / "_delta_log"
        newest = max(int(path.stem) for path in log.glob("*.json"))
        info = json.loads((log / f"{newest:020}.json").read_text().splitlines()[0])["commitInfo"]
        since = int(info.get("objcat.since", 0))
        found = [int(path.stem) for path in log.glob("*.json") if int(path.stem) >= since]
        slots = sorted({*found}.intersection(readable))
        return ShownSlots(newest, slots, slots)
    metadata = folder / "metadata"
    newest = int((metadata / "version-hint.text").read_text()) - 1
    snapshots = json.loads((metadata / f"v{newest + 1}.metadata.json").read_text())["snapshots"]
    travel = {snapshot["snapshot-id"] - 1 for snapshot in snapshots}
    pinned = {int(path.name[1:].partition(".")[0]) - 1 for path in metadata.glob("v*.metadata.json")}
    return ShownSlots(newest, sorted(travel.intersection(readable)), sorted(pinned.intersection(readable)))


def check_shown(history: History, form: str, shown: ShownSlots, readable: Sequence[int]) -> None:
    """Check that a mirror shows every slot that it should. Raises AssertionError with the story of the history."""
    cell, where = history.cell, f"the {form} mirror of {history.told()}\n"
    needed = [slot for slot in readable if history.beside is None or _changes(history, slot)]
    missing = sorted({*needed}.difference(shown.travel))
    if form not in cell.waits:
        assert not missing, f"{where} lacks {missing}"
        assert not {*needed}.difference(shown.pinned), f"{where} has no metadata of its own for some of {needed}"
        return
    assert len(shown.travel) >= SHOWN_MIN, f"{where} shows {shown.travel} only"
    assert missing, f"{where} waited for nothing"
    assert (shown.newest < needed[-1]) == cell.waits_to_the_end, f"{where} stands at {shown.newest}, the table at {needed[-1]}"


def _changes(history: History, slot: int) -> bool:
    """Whether a slot has other rows than the one before it, or may have. Slots of other tables of the log have not."""
    before = history.truths.get(slot - 1)
    return before is None or not before.equals(history.truths[slot])
