"""Engines x formats x kinds of histories: every read beside the rows of objcat, and a record of what came of it."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import objcat
from devkit.engines import ENGINES
from objcat.mirror.formats import folder_of
from tests.engines.cells import CELLS
from tests.engines.histories import History
from tests.engines.limits import EMPTIES, LIMITS, MIRRORS, SETTINGS, WITHOUT, Mirror
from tests.engines.process import EngineProcess, Engines, ReadRefused
from tests.engines.readers.serve import Request
from tests.engines.rows import compare

PROPERTIES: Mapping[str, Mapping[str, str]] = {
    "iceberg 2 and delta": {"mirrors": "iceberg,delta"},
    "iceberg 3": {"mirrors": "iceberg", "mirror_iceberg_version": "3"},
}
"""A table has one version of Iceberg at a time, so each kind of history is written twice."""


@dataclass(frozen=True)
class MirroredHistory:
    """A history whose mirrors stand at its newest slot.

    readable: the slots that objcat can read in the end.
    """

    history: History
    mirrors: Sequence[Mirror]
    folder: str
    readable: Sequence[int]

    def request(self, engine: str, mirror: Mirror, way: str, slot: int, sql: str | None = None, columns: tuple[str, ...] = ()) -> Request:
        """How an engine is asked for a slot."""
        newest = self.readable[-1]
        if mirror.startswith("iceberg"):
            slot, newest = self._shown(slot), self._shown(newest)
        metadata = f"{self.folder}/metadata/v{(slot if way == 'pinned' else newest) + 1}.metadata.json"
        return Request(mirror.split()[0], self.folder, way, slot, metadata, sql, columns, SETTINGS.get((engine, mirror), ()))

    def _shown(self, slot: int) -> int:
        """The slot with the Iceberg metadata of a slot. One of another table in the log has none of its own: nothing changed there."""
        if self.history.beside is None:
            return slot
        there = (int(path.name[1:].partition(".")[0]) - 1 for path in Path(self.folder, "metadata").glob("v*.metadata.json"))
        found = max(one for one in there if one <= slot)
        assert self.history.truths[found].equals(self.history.truths[slot]), f"slot {slot} has other rows than slot {found}"
        return found


@dataclass
class Run:
    """What came of reads.

    reads: by engine, mirror, cell and outcome, which is `equal` or the name of a limit. differences: what no limit explains.
    """

    reads: Counter[tuple[str, str, str, str]] = field(default_factory=Counter)
    differences: list[str] = field(default_factory=list)

    def record(self) -> dict[str, dict[str, dict[str, dict[str, int]]]]:
        """By engine, mirror, cell: how many reads had which outcome."""
        made: dict[str, dict[str, dict[str, dict[str, int]]]] = {}
        for (engine, mirror, cell, outcome), count in sorted(self.reads.items()):
            made.setdefault(engine, {}).setdefault(mirror, {}).setdefault(cell, {})[outcome] = count
        return made

    def unmet(self, engines: Collection[str]) -> list[str]:
        """Limits of these engines that no read met."""
        met = {outcome for _engine, _mirror, _cell, outcome in self.reads}
        return [limit.name for limit in LIMITS if limit.engine in engines and limit.name not in met]


def write_histories(seed: int, folder: Path, names: Collection[str] = CELLS) -> Iterator[MirroredHistory]:
    """Each kind of history with its mirrors, once for each version of Iceberg."""
    for name in names:
        for kind, properties in PROPERTIES.items():
            history = History(CELLS[name], seed, folder / f"{name} {kind}".replace(" ", "-"), properties, mirror_table)
            history.run()
            mirrors: Sequence[Mirror] = ("iceberg 3",) if kind == "iceberg 3" else ("iceberg 2", "delta")
            yield MirroredHistory(history, mirrors, mirror_folder(history.table), history.readable())


def mirror_table(table: objcat.Table) -> None:
    """Bring the mirrors of a table up to its newest slot."""
    table.maintenance.mirror()


def mirror_folder(table: objcat.Table) -> str:
    """Where the mirrors of a table are, as a path: at the prefix of its log, or below it where another table began that log."""
    folder = folder_of(table._context.timeline, table.id, table.name)
    return f"{folder.fileio.url.removeprefix('file://').rstrip('/')}/{folder.folder}".rstrip("/")


def some_slots(mirrored: MirroredHistory, count: int, rng: random.Random) -> list[tuple[str, int]]:
    """Ways and slots of some reads: the newest as a user does it, and older ones by both ways."""
    older = rng.sample(mirrored.readable[:-1], min(count - 1, len(mirrored.readable) - 1))
    return [("newest", mirrored.readable[-1]), *((("travel", "pinned")[number % 2], slot) for number, slot in enumerate(older))]


def all_slots(mirrored: MirroredHistory) -> list[tuple[str, int]]:
    """Every slot by the newest metadata, and every third by its own."""
    newest = mirrored.readable[-1]
    return [("newest", newest), *(("travel", slot) for slot in mirrored.readable), *(("pinned", slot) for slot in mirrored.readable[::3])]


def read_all(
    engine: EngineProcess, mirrored: MirroredHistory, chosen: Sequence[tuple[str, int]], run: Run, *, is_told: bool = True
) -> None:
    """Compare the reads of one engine. is_told: whether it gets the settings that it needs."""
    cell = mirrored.history.cell.name
    for mirror in mirrored.mirrors:
        if mirror.split()[0] not in ENGINES[engine.name].formats:
            continue
        for way, slot in chosen:
            request = mirrored.request(engine.name if is_told else "", mirror, way, slot)
            told = told_difference(engine, mirrored, request)
            limit = next((limit for limit in LIMITS if limit.fits(engine.name, mirror, cell, told or "")), None) if told else None
            if told is None or limit is not None:
                run.reads[engine.name, mirror, cell, "equal" if limit is None else limit.name] += 1
            else:
                run.reads[engine.name, mirror, cell, "different"] += 1
                run.differences.append(f"{engine.name}, {mirror}, {cell}, slot {slot} by {way}: {told[:1500]}")


def told_difference(engine: EngineProcess, mirrored: MirroredHistory, request: Request) -> str | None:
    """None where the rows are equal; how they differ; or why the engine refused."""
    truth = mirrored.history.truths[request.slot]
    try:
        found = engine.read(request)
    except ReadRefused as error:
        return f"refused: {error}"
    difference = compare(truth, found)
    if found.column_names != truth.column_names and found.column_names == [name.lower() for name in truth.column_names]:
        softer = compare(truth, found.rename_columns(truth.column_names))
        return "equal, with names in lower case" if softer is None else softer.text
    if difference is not None and not difference.shapes and engine.name in EMPTIES:
        softer = compare(truth, found, empties=True)
        if softer is None or softer.shapes:
            return "equal, with " + ", ".join([*sorted(softer.shapes if softer else ()), "nulls of nested types as empty values"])
    return None if difference is None else difference.text


def run_matrix(engines: Engines, names: Collection[str], histories: Sequence[MirroredHistory], choose: Any) -> Run:
    """Every engine on every history, one engine after the other. choose: the ways and slots of a history for an engine."""
    run = Run()
    for name in names:
        for mirrored in histories:
            read_all(engines[name], mirrored, choose(name, mirrored), run)
        engines.end(name)
    return run


def write_record(run: Run, path: Path, *, seed: int, names: Collection[str], cells: Collection[str]) -> None:
    """Keep what came of a run, for the page that is made from it. Engines that did not run keep what was known of them."""
    made: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    if made.get("seed") != seed or list(made["cells"]) != list(cells):
        made = {"seed": seed, "engines": {}, "reads": {}}
    met = {outcome for reads in (made["reads"], run.record()) for outcome in _outcomes(reads)}
    engines = {**made["engines"], **{name: {"title": ENGINES[name].title, "versions": ENGINES[name].versions} for name in names}}
    made |= {
        "engines": {name: engines[name] for name in ENGINES if name in engines},
        "mirrors": list(MIRRORS),
        "cells": {name: CELLS[name].title for name in cells},
        "limits": {limit.name: {"why": limit.why, "is_read": limit.is_read} for limit in LIMITS if limit.name in met},
        "only_with": [{"engine": engine, "mirror": mirror, "why": why} for (engine, mirror), why in WITHOUT.items()],
        "reads": {**made["reads"], **run.record()},
    }
    path.write_text(json.dumps(made, indent=1, ensure_ascii=False) + "\n")


def _outcomes(reads: Mapping[str, Mapping[str, Mapping[str, Mapping[str, int]]]]) -> set[str]:
    return {outcome for mirrors in reads.values() for cells in mirrors.values() for told in cells.values() for outcome in told}
