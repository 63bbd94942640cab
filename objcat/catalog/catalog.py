"""The names of a lake: a timeline of its own that binds them to tables, and namespaces that hold them.

Everything else of a table, its schema and properties too, is in the table's own timeline. `docs/spec/protocol.md` is the specification.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace

import msgspec

from fileio.errors import FileIOError
from fileio.store import FileIO
from objcat.catalog.names import NO_NAMES, SUBJECT, CatalogNames, CatalogState, NamesDelta, NamesFold, footprint_of
from objcat.errors import (
    CheckpointCollected,
    CommitUnknown,
    Contention,
    ObjcatError,
)
from objcat.timeline.commit import CommitAttempt, Committed, Committer
from objcat.timeline.commit_session import CommitSession
from objcat.timeline.entry import Action, Txn, check_writable, new_txn
from objcat.timeline.log_view import LogView, Timeline

logger = logging.getLogger("objcat")


CATALOG_PREFIX = "_catalog"
"""Where the catalog's timeline is, below the lake."""
REPLANS_MAX = 100


class Catalog:
    """A handle on the names of a lake, as of the newest slot that it has seen. Safe for many threads."""

    def __init__(self, lake: FileIO) -> None:
        self.fileio = lake.child(CATALOG_PREFIX)
        self.timeline = Timeline(self.fileio, NamesFold())
        self.where = lake.url
        self._committer = Committer(self.fileio)
        self._lock = threading.Lock()
        self._view: LogView[CatalogState] | None = None
        self._names = NO_NAMES

    @property
    def names(self) -> CatalogNames:
        """The names that this handle has seen last. No request."""
        return self._names

    @property
    def slot(self) -> int:
        """The slot of `names`; -1 while there is none."""
        return -1 if self._view is None else self._view.slot

    def refresh(self) -> CatalogNames:
        """The newest names: one GET when nothing is new and the handle has been used before."""
        return self._newest()[1]

    def check_writable(self) -> None:
        """Before an operation whose first step is elsewhere. Raises UnsupportedFormat when names are for newer clients to change."""
        if self._view is not None:
            check_writable(self._view.log.writer_features, where=self.fileio.url)

    def change(
        self, plan: Callable[[CatalogNames], NamesDelta | None], *, txn: Txn | None = None, metadata: Mapping[str, str] | None = None
    ) -> CatalogNames:
        """Commit what `plan` makes of the newest names; None: there is nothing to do.

        Returns the names with it; those before it, should the store not show them after the commit.

        plan: a pure function; it is asked again when somebody else changed what its change touches or relies on, and may raise: then
        nothing of the change is visible. txn: of the operation that this is part of.
        Raises what `plan` raises, Contention, WriterFenced, storage errors that certainly had no effect, and CommitUnknown.
        """
        view, names = self._newest()
        delta = plan(names)
        if delta is None:
            return names
        own = txn or new_txn(self.fileio.env)
        session = CommitSession(self._committer, own, waits=True)
        skew_ms = session.announce(Action.COMMIT, view.log, engine="local")
        try:
            with session:
                for _ in range(REPLANS_MAX):
                    outcome = session.try_commit(_candidate(own, view, names, delta, metadata or {}), skew_ms=skew_ms())
                    if isinstance(outcome, Committed):
                        break
                    view, names = self._keep(self.timeline.advance(view, outcome.read))
                    delta = plan(names)
                    if delta is None:
                        return names
                else:
                    raise Contention(
                        f"{own} was beaten {REPLANS_MAX} times to what it changes in the catalog of {self.where}: try again later",
                        winner_slot=view.slot,
                    )
        except CommitUnknown as error:
            raise CommitUnknown(
                f"whether {own} changed the catalog of {self.where} is not known ({error.__cause__}): nothing was deleted; "
                "lake.resolve(txn) settles it, before you try again",
                own,
            ) from error
        try:
            view, names = self._keep(self.timeline.advance(view, [*outcome.read, outcome.entry]))
        except (ObjcatError, FileIOError) as error:
            # The change is durable, whatever comes after it. The handle is behind, as if another process had made it.
            logger.warning("the catalog of %s could not be read up to slot %d, which is durable: %s", self.where, outcome.entry.slot, error)
            return names
        self.timeline.after_commit(view, self._rebase)
        return names

    def _newest(self) -> tuple[LogView[CatalogState], CatalogNames]:
        view = self._view
        try:
            return self._keep(self.timeline.open() if view is None else self.timeline.refresh(view))
        except CheckpointCollected as error:
            # The checkpoint went while it was read, or is damaged: another one stands for it.
            self.timeline.pass_over(error)
        try:
            return self._keep(self.timeline.open())
        except CheckpointCollected:
            self.timeline.pass_over_all()
            return self._keep(self.timeline.open())

    def _keep(self, view: LogView[CatalogState]) -> tuple[LogView[CatalogState], CatalogNames]:
        """Keep a view unless another thread has kept a newer one meanwhile. Returns this view with its names."""
        with self._lock:
            if self._view is not None and self._view.slot == view.slot:
                return self._view, self._names
        names = view.state.read(self.fileio)
        # From here on the names are in memory: later views need not read the object again.
        known = replace(view, state=CatalogState(names=names))
        with self._lock:
            if self._view is None or self._view.slot < view.slot:
                self._view, self._names = known, names
        return known, names

    def _rebase(self, standing: LogView[CatalogState]) -> None:
        """Let the handle stand on a checkpoint that is newer than its own, wherever it is by now."""
        while (view := self._view) is not None:
            rebased = self.timeline.adopt_checkpoint(view, standing)
            with self._lock:
                if self._view is view:
                    self._view = replace(rebased, state=CatalogState(names=self._names))
                    return


def _candidate(txn: Txn, view: LogView[CatalogState], names: CatalogNames, delta: NamesDelta, metadata: Mapping[str, str]) -> CommitAttempt:
    return CommitAttempt(
        txn=txn,
        action=Action.COMMIT,
        base=view.log,
        changes={SUBJECT: msgspec.Raw(msgspec.json.encode(delta))},
        footprint={SUBJECT: footprint_of(names, delta)},
        metadata=metadata,
    )
