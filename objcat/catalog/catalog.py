"""`Catalog`: the table names and namespaces of a lake, in a log of their own.

A catalog entry binds a name to a table, or creates, changes or drops a namespace. Everything else of a table, including schema and
properties, is in the table's own log. `docs/spec/services.md` is the specification.

It promises that a change of names commits as one slot, or not at all. Begin with `Catalog.change`, which repeats a plan (`plans`) when
another writer was first. `names` holds the stored values and their replay. `table_lifecycle` writes the table's own log. `Lake` calls them
all.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace

import msgspec

from fileio.errors import FileIOError
from fileio.store import FileIO
from objcat.catalog.names import NO_NAMES, SUBJECT, CatalogNames, CatalogState, NamesDelta, NamesReducer, footprint_of
from objcat.errors import (
    CheckpointCollected,
    CommitUnknown,
    Contention,
    ObjcatError,
)
from objcat.timeline.attempt import CommitAttempt, Committed
from objcat.timeline.commit import Committer
from objcat.timeline.commit_session import CommitSession
from objcat.timeline.entry import Action, Txn, check_writable, new_txn
from objcat.timeline.hints import FoundHint, Hints
from objcat.timeline.log_view import LogView, Timeline
from objcat.timeline.rollback import Resolution, resolve

logger = logging.getLogger("objcat")


CATALOG_PREFIX = "_catalog"
"""The prefix of the catalog's log, below the lake."""
REPLANS_MAX = 100
"""How often a change is planned before it gives up."""


class Catalog:
    """A handle on the names of a lake, as of the newest slot that it has seen. Safe for many threads."""

    def __init__(self, lake: FileIO) -> None:
        self.fileio = lake.child(CATALOG_PREFIX)
        # Names change seldom, and every process asks for them first.
        self.timeline = Timeline(self.fileio, NamesReducer(), Hints(every=1))
        self.where = lake.url
        self._committer = Committer(self.fileio)
        self._lock = threading.Lock()
        self._view: LogView[CatalogState] | None = None
        self._names = NO_NAMES

    @property
    def names(self) -> CatalogNames:
        """The newest names that this handle has seen. No request."""
        return self._names

    @property
    def slot(self) -> int:
        """The slot of `names`; -1 while there is none."""
        return -1 if self._view is None else self._view.slot

    def refresh(self, hint: FoundHint | None = None) -> CatalogNames:
        """The newest names. One GET when nothing is new and the handle was used before.

        Args:
            hint: Of a handle that was not used before, if it was just read.
        """
        return self._newest(hint)[1]

    def foresee(self) -> tuple[CatalogNames, FoundHint | None]:
        """Names that are probably the newest ones, and the hint if it was read for them. They may be stale or wrong.

        One GET, of the hint, when the handle was not used before.
        """
        if self._view is not None:
            return self._names, None
        hint = self.timeline.read_hint()
        view = self.timeline.foresee(hint)
        return (NO_NAMES if view is None or view.state.names is None else view.state.read(self.fileio)), hint

    def check_writable(self) -> None:
        """Check that this client may change names, before an operation that begins elsewhere. Raises UnsupportedFormat."""
        if self._view is not None:
            check_writable(self._view.log.writer_features, where=self.fileio.url)

    def change(
        self, plan: Callable[[CatalogNames], NamesDelta | None], *, txn: Txn | None = None, metadata: Mapping[str, str] | None = None
    ) -> CatalogNames:
        """Commit the change of names that `plan` makes from the newest names. None: there is nothing to do.

        Args:
            plan: A pure function. It is called again when another writer changed what its change touches or needs. It may raise; then
                nothing of the change is visible.
            txn: The transaction of the operation around it.
            metadata: The user's own, for the entry.

        Returns:
            The names with the change. The names before it, if the store does not show them after the commit.

        Raises:
            ObjcatError: What `plan` raises.
            Contention, WriterFenced, FileIOError: Certainly without effect.
            CommitUnknown: The outcome is unknown.
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
                        f"{own} conflicted {REPLANS_MAX} times with other changes of the catalog of {self.where}. Nothing was written. "
                        "Try again later.",
                        winner_slot=view.slot,
                    )
        except CommitUnknown as error:
            raise CommitUnknown(
                f"It is not known whether {own} changed the catalog of {self.where} ({error.__cause__}). Nothing was deleted. "
                "Call lake.resolve(txn) before you try again. It settles the outcome.",
                own,
            ) from error
        try:
            view, names = self._keep(self.timeline.advance(view, [*outcome.read, outcome.entry]))
        except (ObjcatError, FileIOError) as error:
            # The change is durable. The handle is behind, as if another process had made the change.
            logger.warning("The catalog of %s could not be read up to slot %d, which is durable: %s", self.where, outcome.entry.slot, error)
            return names
        self.timeline.after_commit(view, self._adopt_checkpoint)
        return names

    def resolve(self, txn: Txn) -> Resolution:
        """Settle a change whose outcome is unknown. Raises CommitUnknown while the store does not answer."""
        return resolve(self.fileio, txn)

    def _newest(self, hint: FoundHint | None = None) -> tuple[LogView[CatalogState], CatalogNames]:
        view = self._view
        try:
            return self._keep(self.timeline.open(hint) if view is None else self.timeline.refresh(view))
        except CheckpointCollected as error:
            # The checkpoint was deleted while it was read, or is damaged. Use another one.
            self.timeline.pass_over(error)
        try:
            return self._keep(self.timeline.open())
        except CheckpointCollected:
            self.timeline.pass_over_all()
            return self._keep(self.timeline.open())

    def _keep(self, view: LogView[CatalogState]) -> tuple[LogView[CatalogState], CatalogNames]:
        """Store a view unless another thread has stored a newer one. Returns this view with its names."""
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

    def _adopt_checkpoint(self, standing: LogView[CatalogState]) -> None:
        """Make the handle use a checkpoint that is newer than its own."""
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
