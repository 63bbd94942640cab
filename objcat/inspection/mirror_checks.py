"""Checks of mirrors: whether they follow the log, and whether readers of them see the rows of the table.

The newest slot is compared with the table: files, sizes, rows and masked positions. Of all other readable slots that the mirror has, the
metadata is read. `iceberg_checks.py` and `delta_checks.py` read what the formats write; the comparison by positions is here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from fileio.errors import FileIOError
from objcat.errors import ObjcatError
from objcat.inspection.delta_checks import check_delta
from objcat.inspection.findings import Examination, Finding, Severity
from objcat.inspection.iceberg_checks import check_iceberg
from objcat.inspection.mirror_slots import REMADE, MirrorUnderCheck
from objcat.metadata.properties import mirrors_of
from objcat.metadata.table_state import Tables
from objcat.mirror.formats import PREFIXES, folder_of
from objcat.mirror.masked_files import NO_ROWS
from objcat.mirror.mirror import TableMirrors
from objcat.mirror.model import CorruptMirror, ForeignMetadata, MirroredFile, MirrorFolder, MirrorFormat
from objcat.timeline.log_view import LogView

LAG_SLOTS_MAX = 64
"""A mirror that is further behind is reported."""
ATTEMPTS_MAX = 3
"""How often a mirror is examined that another process changes meanwhile."""
REMEDY = "Run objcat mirror. Readers of the mirror see an older slot until then."
_CHECKS = {"iceberg": check_iceberg, "delta": check_delta}


def check_mirrors(own: Examination, view: LogView[Tables], *, deep: bool) -> None:
    """Check the mirrors of all tables of a log.

    Args:
        view: the newest one.
        deep: also read the metadata of all readable slots of each mirror, and compare its newest slot with the table.
    """
    for table, state in view.state.items():
        if not mirrors_of(state.spec.properties) or view.log.marks(table).closed_at is not None:
            continue
        try:
            for name in mirrors_of(state.spec.properties):
                _MirrorCheck(own, view, table, name, folder_of(own.timeline, table, table)).run(deep=deep)
        except (ObjcatError, FileIOError) as error:
            own.report.leftover(f"the mirrors of {table}", f"cannot be read: {error}", REMEDY)


@dataclass(frozen=True, slots=True)
class _MirrorCheck:
    """The examination of one mirror of one table, whose newest view is `view`."""

    own: Examination
    view: LogView[Tables]
    table: str
    name: str
    folder: MirrorFolder

    @property
    def where(self) -> str:
        return f"the {self.name} mirror of {self.table}"

    def run(self, *, deep: bool) -> None:
        """Report what is found. While other processes change the mirror, only what is found again and again."""
        findings: list[Finding] = []
        for attempt in range(ATTEMPTS_MAX):
            before = self._objects()
            again = list(self._findings(deep=deep))
            findings = [finding for finding in again if not attempt or finding in findings]
            if not findings or before == self._objects():
                break
        self.own.report.findings.extend(findings)

    def _objects(self) -> Mapping[str, str]:
        """The objects of the mirror with their versions."""
        pages = (page for prefix in PREFIXES[self.name] for page in self.folder.fileio.list(self.folder.folder + prefix))
        return {meta.key: meta.version for page in pages for meta in page.objects}

    def _findings(self, *, deep: bool) -> Iterator[Finding]:
        """Everything that is wrong."""
        try:
            yield from self._found(deep=deep)
        except (ForeignMetadata, CorruptMirror) as error:
            yield MirrorUnderCheck(self.where, self.folder, -1, {}, None).broken(self.where, f"cannot be read: {error}", error)
        except (ObjcatError, FileIOError) as error:
            yield self._leftover(f"cannot be read: {error}")

    def _found(self, *, deep: bool) -> Iterator[Finding]:
        mirrors = TableMirrors(self.own.timeline, self.table, self.table, self.own.manifests)
        (form,) = (form for form in mirrors.formats(self.view) if form.format == self.name)
        try:
            newest = form.newest()
        except (ForeignMetadata, CorruptMirror) as error:
            # Which object it is says more than that the mirror cannot be read.
            damage = self._damage(-1, None) if deep else []
            if not damage:
                raise error
            yield from damage
            return
        if newest is None:
            yield self._leftover("is not there")
            return
        lag = mirrors.lag(newest.slot, self.view)
        if lag > LAG_SLOTS_MAX:
            yield self._leftover(f"is at slot {newest.slot}, {lag:,} slots behind")
        if not deep:
            return
        files: dict[str, MirroredFile] | None = None
        if newest.slot <= self.view.slot and self.view.log.marks(self.table).is_readable(newest.slot):
            files = {file.path: file for file in mirrors.state_at(self.own.timeline.at(newest.slot)).added}
        damage = self._damage(newest.slot, files)
        yield from damage
        if files is not None and not damage:
            yield from self._compared(form, newest.slot, files)

    def _damage(self, newest: int, files: Mapping[str, MirroredFile] | None) -> list[Finding]:
        """What is wrong with the metadata of readable slots."""
        marks = self.view.log.marks(self.table)
        txns = {entry.slot: entry.txn for entry in self.own.entries if marks.is_readable(entry.slot)}
        return _CHECKS[self.name](MirrorUnderCheck(self.where, self.folder, newest, txns, files))

    def _leftover(self, says: str) -> Finding:
        return Finding("P8", Severity.LEFTOVER, self.where, says, REMEDY)

    def _compared(self, form: MirrorFormat, slot: int, files: Mapping[str, MirroredFile]) -> Iterator[Finding]:
        """What readers of the newest slot see otherwise than the table has it."""
        live = form.live_files()
        masked = form.masked(sorted(files.keys() & live.keys()))
        at = f"of the table at slot {slot}"
        for path, file in sorted(files.items()):
            if path not in live:
                says = f"is a file {at}, but {self.where} lacks it"
            elif not np.array_equal(file.masked, masked.get(path, NO_ROWS)):
                says = f"shows other rows in {self.where} than those {at}"
            else:
                continue
            yield Finding("P7", Severity.BROKEN, path, says, REMADE)
        for path in sorted(live.keys() - files.keys()):
            yield Finding("P7", Severity.BROKEN, path, f"is no file {at}, but {self.where} shows it", REMADE)
        counts = self.own.report.counts
        counts["mirrored files"] = counts.get("mirrored files", 0) + len(files)
