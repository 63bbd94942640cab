"""A table that is prepared once and struck again and again: a process meets a fault, readers read, another process goes on."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import objcat
from fileio.errors import FileIOError
from fileio.schemes import open_backend
from fileio.store import FileIO
from fileio.testing.env import FakeEnv
from fileio.testing.faults import APPLICABLE, Crash, Fault, FaultyBackend, Hit, Request
from fileio.write_outcomes import RetryPolicy
from objcat.errors import ObjcatError
from tests.copies import copy_lake
from tests.mirror.histories import READERS, Rows, folder, has_beginning, is_restart, make_table, objects_of_mirrors, rows_at, slots_of

Prepare = Callable[[objcat.Table], None]
Run = Callable[[objcat.Table], object]


@dataclass
class Strike:
    """Hits requests from `first` to `last` with a fault, where they can suffer it."""

    fault: Fault
    first: int = 0
    last: int = -1

    def choose(self, request: Request) -> Hit | None:
        if not self.first <= request.number <= self.last or self.fault not in APPLICABLE[request.kind]:
            return None
        return Hit(self.fault)


@dataclass
class Stage:
    """A table in a directory.

    Attributes:
        run: what the process does that is struck.
        properties: of the table.
        counts: what was tried so far.
    """

    directory: Path
    prepare: Prepare
    run: Run
    properties: Mapping[str, str]
    counts: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._place, self._saved = self.directory / "lake", self.directory / "saved"
        table = make_table(objcat.connect(self._place), **self.properties)
        self.prepare(table)
        head = table.refresh()
        # No slot of the log ever changes, so its rows are read once.
        self._rows = {slot: rows_at(table, slot) for slot in range(head.log.marks(table.id).bound, head.slot + 1)}
        copy_lake(self._place, self._saved)

    def strike(self, fault: Fault, first: int, length: int = 1) -> bool:
        """One process meets a fault from a request on, and another goes on. Returns whether there was such a request."""
        shutil.rmtree(self._place)
        copy_lake(self._saved, self._place)
        script = Strike(fault)
        backend = FaultyBackend(open_backend(self._place.as_uri(), {}), script)
        store = FileIO(backend, env=FakeEnv(first), policy=RetryPolicy(attempts_max=3))
        struck = objcat.Lake(store).table("shop.people")
        opened = sum(backend.asked.values())
        script.first = opened + first
        script.last = script.first + length - 1
        with suppress(Crash, FileIOError, ObjcatError):
            self.run(struck)
        met = bool(backend.fired)
        self.counts["requests"] += met
        watcher = objcat.connect(self._place).table("shop.people")
        self._check_each(watcher)
        if backend.pending:
            backend.release()
            self._check_each(watcher)
        self._go_on(objcat.connect(self._place).table("shop.people"))
        return sum(backend.asked.values()) >= script.first

    def _go_on(self, table: objcat.Table) -> None:
        """What other processes do afterwards works, and what they leave is right."""
        if table.properties.get("mirrors", "none") == "none":
            table.maintenance.mirror()
            assert not objects_of_mirrors(folder(table))
            table.set_properties({"mirrors": self.properties["mirrors"]})
        self._check_caught_up(table)
        table.delete([{"id": 1}])
        self._check_caught_up(table)

    def _check_caught_up(self, table: objcat.Table) -> None:
        reports = table.maintenance.mirror()
        slot = table.refresh().slot
        assert {report.format for report in reports} == set(self.properties["mirrors"].split(","))
        assert all(report.slot == slot and not report.held for report in reports)
        read = self._check_each(table)
        assert all((report.format, slot) in read for report in reports)

    def _check_each(self, table: objcat.Table) -> set[tuple[str, int]]:
        """Whatever a reader can begin with reads exactly its slot, if the table can still be read there. Returns what was read."""
        where, read = folder(table), set()
        marks = table.refresh().log.marks(table.id)
        checkpoints = {int(path.name[:20]) for path in where.glob("_delta_log/*.checkpoint.parquet")}
        restarts = {int(path.name[:20]) for path in where.glob("_delta_log/*.json") if is_restart(path.read_bytes())}
        for name, slots in slots_of(where).items():
            for slot in slots:
                if not marks.is_readable(slot):
                    continue
                expected = self._rows[slot] if slot in self._rows else rows_at(table, slot)
                if name == "delta" and not has_beginning(slot, slots, checkpoints, restarts):
                    # A restart whose writer died before its checkpoint: readers get an error, and never other rows.
                    self._check_unreadable(where, slot, expected)
                    continue
                assert READERS[name](where, slot) == expected, f"{name} at slot {slot}"
                read.add((name, slot))
        self.counts["reads"] += len(read)
        return read

    def _check_unreadable(self, where: Path, slot: int, expected: Rows) -> None:
        self.counts["without a checkpoint"] += 1
        try:
            found = READERS["delta"](where, slot)
        except Exception:  # noqa: BLE001 - whatever readers raise
            return
        assert found == expected, f"delta at slot {slot}, which has no checkpoint"
