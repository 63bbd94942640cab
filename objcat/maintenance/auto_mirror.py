"""Mirrors that follow a table by themselves: after each commit of a handle, in the background."""

from __future__ import annotations

import logging
import threading
from functools import partial

from fileio.env import on_fork
from objcat.metadata.manifest import Manifests
from objcat.metadata.properties import mirrors_of
from objcat.metadata.table_state import Tables
from objcat.mirror.mirror import MirrorReport, TableMirrors
from objcat.timeline.log_view import LogView, Timeline

logger = logging.getLogger("objcat")


class AutoMirror:
    """The mirrors of some tables, each followed by one thread at a time. Safe for many threads.

    It remembers what the mirrors hold, so that the mirror of one more slot sends few requests.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tables: dict[tuple[str, str], _Following] = {}
        on_fork(self)

    def after_fork(self) -> None:
        """Forget threads and locks that a fork does not copy."""
        self._lock = threading.Lock()
        self._tables = {}

    def after(self, timeline: Timeline[Tables], view: LogView[Tables], table: str, name: str, manifests: Manifests) -> None:
        """Mirror the slots up to the newest one, in the background, if the properties of the table name a mirror.

        Returns at once and never raises. A failure is logged, and the next commit tries again. While one round runs, more commits ask for
        one further round together.
        """
        if table not in view.state or not mirrors_of(view.state[table].spec.properties):
            return
        following = self._following(timeline, table, name, manifests)
        if not following.ask():
            return
        try:
            # The end of the process waits for a round that has begun, so that the mirror of a short job is there when it has ended.
            timeline.fileio.env.submit(partial(self._quietly, timeline, following))
        except RuntimeError as error:
            following.end()
            logger.warning("The mirrors of %s at %s are left to later writers: %s", name, timeline.fileio.url, error)

    def now(
        self, timeline: Timeline[Tables], view: LogView[Tables], table: str, name: str, manifests: Manifests
    ) -> tuple[MirrorReport, ...]:
        """Mirror the slots up to a view, after a round that is under way. Mirrors that the table has no more are deleted.

        Raises as `TableMirrors.catch_up`.
        """
        following = self._following(timeline, table, name, manifests)
        with following.lock:
            following.mirrors.remove_unnamed(view)
            return following.mirrors.catch_up(view)

    def start_over(self, timeline: Timeline[Tables], view: LogView[Tables], table: str, name: str, manifests: Manifests) -> int:
        """Make the mirrors again and forget their history. Raises as `TableMirrors.start_over`. Returns how many objects were deleted."""
        if not mirrors_of(view.state[table].spec.properties):
            return 0
        following = self._following(timeline, table, name, manifests)
        with following.lock:
            return following.mirrors.start_over(view)

    def _following(self, timeline: Timeline[Tables], table: str, name: str, manifests: Manifests) -> _Following:
        key = (timeline.fileio.url, table)
        with self._lock:
            if key not in self._tables:
                self._tables[key] = _Following(TableMirrors(timeline, table, name, manifests))
            return self._tables[key]

    def _quietly(self, timeline: Timeline[Tables], following: _Following) -> None:
        again = True
        while again:
            try:
                with following.lock:
                    following.mirrors.catch_up()
            except Exception as error:  # noqa: BLE001 - the write that began this has succeeded, and the next one tries again
                logger.warning("The mirrors at %s are left to later writers: %s", timeline.fileio.url, error)
                following.end()
                return
            again = following.is_asked_again()


class NoMirrors(AutoMirror):
    """Mirrors nothing by itself."""

    def after(self, *_: object, **__: object) -> None:
        """Mirror nothing."""


class _Following:
    """The mirrors of one table, and whether a round runs. lock: held by a round."""

    def __init__(self, mirrors: TableMirrors) -> None:
        self.mirrors = mirrors
        self.lock = threading.Lock()
        self._state = threading.Lock()
        self._runs = False
        self._asked = False

    def ask(self) -> bool:
        """Ask for a round. Returns whether the caller has to start it."""
        with self._state:
            if self._runs:
                self._asked = True
                return False
            self._runs = True
            return True

    def is_asked_again(self) -> bool:
        """Called at the end of a round: whether it has to run again. Otherwise it has ended."""
        with self._state:
            self._runs, self._asked = self._asked, False
            return self._runs

    def end(self) -> None:
        """The round has failed or did not begin."""
        with self._state:
            self._runs = self._asked = False
