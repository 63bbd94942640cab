"""Checks of the positions of sources: each version is there once, checkpoints agree, and the newest states can be read."""

from __future__ import annotations

from collections.abc import Sequence

from objcat.inspection.findings import CACHE, DoctorReport, Examination
from objcat.metadata.table_state import Tables
from objcat.timeline.checkpoint import root_key
from objcat.timeline.entry import Entry
from objcat.timeline.log_view import LogView
from objcat.timeline.position import check_intact


def check_position_versions(report: DoctorReport, entries: Sequence[Entry]) -> None:
    """P5: the versions of a source count its commits, so no part of it was committed twice or left out."""
    reached: dict[str, tuple[int, int]] = {}
    for entry in entries:
        for source, change in entry.positions.items():
            version, slot = reached.get(source, (-1, -1))
            if change.version != version + 1:
                before = f"slot {slot} has version {version}" if slot >= 0 else "no slot below it has one"
                report.broken(
                    "P5",
                    f"slot {entry.slot}",
                    f"brings version {change.version} of the position of {source!r}, and {before}. Rows of the source may be there twice, "
                    "or be missing.",
                    "Read the source again from its beginning. Report this as a bug.",
                )
            reached[source] = change.version, entry.slot
            report.counts["positions"] += 1


def check_positions(own: Examination, view: LogView[Tables]) -> None:
    """P7: the newest state of each source can be read. view: the log as the examination read it."""
    for source, progress in view.log.sources.items():
        wrong = check_intact(own.fileio, source, progress)
        if wrong is None or own.timeline.refresh(view).log.sources[source] != progress:
            continue  # A newer version took its place, and a clean may have deleted the earlier state.
        own.report.broken(
            "P7",
            f"the position of {source!r}",
            wrong,
            f"Restore the object from a backup, or commit a position with since={progress.version} from a state that you know.",
        )


def check_checkpoint_positions(own: Examination, opened: LogView[Tables], replayed: LogView[Tables]) -> None:
    """P9: a handle that opens by the shortest way has the positions of the log. Both views are of one slot."""
    if dict(opened.log.sources) != dict(replayed.log.sources):
        says = "has other positions of sources than the log. Their readers would be refused, or go on from an older one."
        own.report.broken("P9", root_key(opened.checkpoint), says, f"{CACHE} Report this as a bug.")
