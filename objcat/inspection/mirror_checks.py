"""Checks of mirrors: whether they follow the log, and whether they show the rows of the table."""

from __future__ import annotations

import numpy as np

from fileio.errors import FileIOError
from objcat.errors import ObjcatError
from objcat.inspection.findings import Examination
from objcat.metadata.properties import mirrors_of
from objcat.metadata.table_state import Tables
from objcat.mirror.changes import NO_ROWS
from objcat.mirror.mirror import TableMirrors
from objcat.mirror.model import MirrorFormat
from objcat.timeline.log_view import LogView

LAG_SLOTS_MAX = 64
"""A mirror that is further behind is reported."""
REMEDY = "Run objcat mirror. Readers of the mirror see an older slot until then."
REMADE = "Set the property mirrors to none and run objcat mirror, then set it again: the mirror is made again from the log."


def check_mirrors(own: Examination, view: LogView[Tables], *, deep: bool) -> None:
    """Check the mirrors of all tables of a log.

    Args:
        view: the newest one.
        deep: also compare which rows of which files each mirror shows with those of the table at that slot.
    """
    for table, state in view.state.items():
        if not mirrors_of(state.spec.properties) or view.log.marks(table).closed_at is not None:
            continue
        mirrors = TableMirrors(own.timeline, table, table, own.manifests)
        try:
            forms = mirrors.formats(view)
        except (ObjcatError, FileIOError) as error:
            own.report.leftover(f"the mirrors of {table}", f"cannot be read: {error}", REMEDY)
            continue
        for form in forms:
            _check(own, mirrors, form, view, table, deep=deep)


def _check(own: Examination, mirrors: TableMirrors, form: MirrorFormat, view: LogView[Tables], table: str, *, deep: bool) -> None:
    where = f"the {form.format} mirror of {table}"
    try:
        newest = form.newest()
        if newest is None:
            own.report.leftover(where, "is not there", REMEDY)
            return
        if view.slot - newest.slot > LAG_SLOTS_MAX:
            own.report.leftover(where, f"is at slot {newest.slot}, {view.slot - newest.slot:,} slots behind", REMEDY)
        if not deep or newest.slot > view.slot or not view.log.marks(table).is_readable(newest.slot):
            return
        files = {file.path: file for file in mirrors.state_at(own.timeline.at(newest.slot)).added}
        shown = frozenset(form.live_files())
        masked = form.masked(sorted(files.keys() & shown))
    except (ObjcatError, FileIOError) as error:
        own.report.leftover(where, f"cannot be read: {error}", REMADE)
        return
    at = f"of the table at slot {newest.slot}"
    for path, file in sorted(files.items()):
        if path not in shown:
            own.report.broken("P7", path, f"is a file {at}, but {where} lacks it", REMADE)
        elif not np.array_equal(file.masked, masked.get(path, NO_ROWS)):
            own.report.broken("P7", path, f"shows other rows in {where} than those {at}", REMADE)
    for path in sorted(shown - files.keys()):
        own.report.broken("P7", path, f"is no file {at}, but {where} shows it", REMADE)
    own.report.counts["mirrored files"] = own.report.counts.get("mirrored files", 0) + len(files)
