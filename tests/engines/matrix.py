"""Engines x formats x kinds of histories: every read beside the rows of objcat, and a record of what came of it."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import objcat
from devkit.engines import ENGINES
from objcat.mirror.formats import folder_of
from tests.engines.cells import CELLS
from tests.engines.histories import History
from tests.engines.limits import LIMITS, MIRRORS, SETTINGS, WITHOUT, Mirror, limits_of
from tests.engines.own_ways import differences
from tests.engines.process import EngineProcess, ReadRefused
from tests.engines.readers.serve import Request
from tests.engines.shown import ShownSlots, check_shown, shown_slots
from tests.serve.serving import serving

PROPERTIES: Mapping[str, Mapping[str, str]] = {
    "iceberg 2 and delta": {"mirrors": "iceberg,delta"},
    "iceberg 3": {"mirrors": "iceberg", "mirror_iceberg_version": "3"},
}
"""A table has one version of Iceberg at a time, so each kind of history is written twice."""


@dataclass(frozen=True)
class MirroredHistory:
    """A history whose mirrors stand at the newest slot that they can express.

    folder: of the mirrors. shown: the slots that readers of each mirror can ask for.
    """

    history: History
    folder: str
    shown: Mapping[Mirror, ShownSlots]

    def request(
        self,
        engine: str,
        mirror: Mirror,
        way: str,
        slot: int,
        sql: str | None = None,
        columns: tuple[str, ...] = (),
        *,
        catalog: str = "",
    ) -> Request:
        """How an engine is asked for a slot."""
        version = (slot if way == "pinned" else self.shown[mirror].newest) + 1
        metadata = f"{self.folder}/metadata/v{version}.metadata.json"
        return Request(mirror.split()[0], self.folder, way, slot, metadata, sql, columns, SETTINGS.get((engine, mirror), ()), catalog)

    @contextmanager
    def catalog(self) -> Iterator[str]:
        """The URL of a server that has the table, while the block runs; nothing where engines find the table by its path."""
        if not self.history.cell.by_catalog:
            yield ""
            return
        with serving(objcat.connect(self.history.folder)) as url:
            yield url


Choice = Callable[[MirroredHistory, Mirror], Sequence[tuple[str, int]]]
"""Ways and slots of the reads of one mirror."""


@dataclass
class Run:
    """What came of reads.

    reads: by engine, mirror, cell and outcome, which is `equal` or the names of limits with plus signs between them.
    differences: what no limit explains.
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
        met = {name for _engine, _mirror, _cell, outcome in self.reads for name in outcome.split("+")}
        return [limit.name for limit in LIMITS if limit.engine in engines and limit.name not in met]


def write_histories(seed: int, folder: Path, names: Collection[str] = CELLS) -> Iterator[MirroredHistory]:
    """Each kind of history with its mirrors, once for each version of Iceberg."""
    for name in names:
        for kind, properties in PROPERTIES.items():
            history = History(CELLS[name], seed, folder / f"{name} {kind}".replace(" ", "-"), properties, mirror_table)
            history.run()
            mirrors: Sequence[Mirror] = ("iceberg 3",) if kind == "iceberg 3" else ("iceberg 2", "delta")
            where, readable = mirror_folder(history.table), history.readable()
            shown = {mirror: shown_slots(Path(where), mirror.split()[0], readable) for mirror in mirrors}
            for mirror, slots in shown.items():
                check_shown(history, mirror.split()[0], slots, readable)
            yield MirroredHistory(history, where, shown)


def mirror_table(table: objcat.Table) -> None:
    """Bring the mirrors of a table up to its newest slot."""
    table.maintenance.mirror()


def mirror_folder(table: objcat.Table) -> str:
    """Where the mirrors of a table are, as a path: at the prefix of its log, or below it where another table began that log."""
    folder = folder_of(table._context.timeline, table.id, table.name)
    return f"{folder.fileio.url.removeprefix('file://').rstrip('/')}/{folder.folder}".rstrip("/")


def some_slots(mirrored: MirroredHistory, mirror: Mirror, count: int, rng: random.Random) -> list[tuple[str, int]]:
    """Ways and slots of some reads: the newest as a user does it, and older ones by both ways."""
    shown, ways = mirrored.shown[mirror], ways_of(mirrored)
    chosen = [("newest", shown.newest)]
    for number, way in enumerate(ways):
        slots = shown.by(way)[:-1]
        of_way = (count - 1 + len(ways) - 1 - number) // len(ways)
        chosen += [(way, slot) for slot in rng.sample(slots, min(of_way, len(slots)))]
    return chosen


def all_slots(mirrored: MirroredHistory, mirror: Mirror) -> list[tuple[str, int]]:
    """Every slot by the newest metadata, and every third by its own."""
    shown = mirrored.shown[mirror]
    pinned = shown.pinned[::3] if "pinned" in ways_of(mirrored) else ()
    return [("newest", shown.newest), *(("travel", slot) for slot in shown.travel), *(("pinned", slot) for slot in pinned)]


def ways_of(mirrored: MirroredHistory) -> tuple[str, ...]:
    """The ways to older slots. A catalog names the newest metadata alone."""
    return ("travel",) if mirrored.history.cell.by_catalog else ("travel", "pinned")


def read_all(engine: EngineProcess, mirrored: MirroredHistory, choose: Choice, run: Run, *, is_told: bool = True) -> None:
    """Compare the reads of one engine. is_told: whether it gets the settings that it needs."""
    cell = mirrored.history.cell
    with mirrored.catalog() as url:
        for mirror in mirrored.shown:
            form = mirror.split()[0]
            if form not in ENGINES[engine.name].formats or (cell.by_catalog and form == "delta"):
                continue
            for way, slot in choose(mirrored, mirror):
                request = mirrored.request(engine.name if is_told else "", mirror, way, slot, catalog=url)
                told = told_differences(engine, mirrored, request)
                limits = limits_of(engine.name, mirror, cell.name, told)
                if limits is None:
                    run.reads[engine.name, mirror, cell.name, "different"] += 1
                    run.differences.append(f"{engine.name}, {mirror}, {cell.name}, slot {slot} by {way}: {'; '.join(told)[:1500]}")
                else:
                    run.reads[engine.name, mirror, cell.name, "+".join(limit.name for limit in limits) or "equal"] += 1


def told_differences(engine: EngineProcess, mirrored: MirroredHistory, request: Request) -> tuple[str, ...]:
    """Nothing where the rows are equal; how they differ, see `differences`; or why the engine refused."""
    try:
        found = engine.read(request)
    except ReadRefused as error:
        return (f"refused: {error}",)
    return differences(mirrored.history.truths[request.slot], found, engine.name, request)


def write_record(run: Run, path: Path, *, seed: int, names: Collection[str], cells: Collection[str]) -> None:
    """Keep what came of a run, for the page that is made from it. Engines that did not run keep what was known of them."""
    made: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    if made.get("seed") != seed or list(made["cells"]) != list(cells):
        made = {"seed": seed, "engines": {}, "reads": {}}
    met = {name for reads in (made["reads"], run.record()) for name in _limits_in(reads)}
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


def _limits_in(reads: Mapping[str, Mapping[str, Mapping[str, Mapping[str, int]]]]) -> set[str]:
    told = [outcome for mirrors in reads.values() for cells in mirrors.values() for outcomes in cells.values() for outcome in outcomes]
    return {name for outcome in told for name in outcome.split("+")}
