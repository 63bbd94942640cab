"""How long cleaning waits for mirrors: files that the newest mirrored slot names stay, for a time."""

from __future__ import annotations

import logging

from fileio.errors import FileIOError
from objcat.errors import ObjcatError
from objcat.metadata.manifest import Manifests
from objcat.metadata.properties import mirrors_of
from objcat.metadata.table_state import Tables
from objcat.mirror.mirror import TableMirrors
from objcat.timeline.log_view import LogView, Timeline

logger = logging.getLogger("objcat")

WAITED_MS = 7 * 86_400_000
"""A mirror that has not moved for so long holds nothing any more. Its readers then miss files, and never get wrong rows."""
EXPIRED_AFTER_MS = 86_400_000
"""Objects of a mirror that no readable slot names are deleted when they are a day old. Younger ones may belong to a slot under way."""


def oldest_mirrored(timeline: Timeline[Tables], view: LogView[Tables], table: str) -> int | None:
    """The oldest slot that a mirror of the table still shows as its newest. None if no mirror holds anything.

    The mirrors catch up first. One that fails, or is held, holds the files of its newest slot, see `WAITED_MS`. Never raises for a mirror
    that fails.
    """
    if table not in view.state or not mirrors_of(view.state[table].spec.properties):
        return None
    mirrors = TableMirrors(timeline, table, table, Manifests(timeline.fileio))
    try:
        mirrors.catch_up(view)
    except (ObjcatError, FileIOError) as error:
        logger.warning("Cleaning of %s goes on without its mirrors, which failed: %s", timeline.fileio.url, error)
    try:
        newest, lags = mirrors.newest(view), mirrors.lags(view)
    except (ObjcatError, FileIOError):
        return None
    slots = [one.slot for name, one in newest.items() if one is not None and lags[name]]
    if not slots:
        return None
    oldest = min(slots)
    entry = timeline.log.read_stub(oldest)
    if entry is None or view.log.committed_at_ms - entry.committed_at_ms > WAITED_MS:
        return None
    return oldest


def expire_mirrors(timeline: Timeline[Tables], view: LogView[Tables], table: str) -> int:
    """Delete what mirrors of a table hold for slots that are not readable any more. Returns how many objects.

    Raises:
        ObjcatError, FileIOError: of a mirror that cannot be read, or of the store. The next call goes on.
    """
    if table not in view.state or not mirrors_of(view.state[table].spec.properties):
        return 0
    mirrors = TableMirrors(timeline, table, table, Manifests(timeline.fileio))
    before_ms = timeline.fileio.env.now_ms() - EXPIRED_AFTER_MS
    return sum(form.expire(modified_before_ms=before_ms) for form in mirrors.formats(view))
