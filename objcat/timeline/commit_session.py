"""`CommitSession`: one transaction from its intent to its end.

Every writer uses it: writes, table services, catalog changes and rollbacks. Nothing else decides what becomes of the files and the intent
of a transaction. The table in its docstring is the whole contract; `__exit__` carries it out. `Committer` (module `commit`) does the single
attempt.

It promises that files are deleted only when no slot can belong to the transaction, and that a commit that happened is reported as one.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from types import TracebackType
from typing import Self

from fileio.errors import FileIOError
from objcat.common.memory_errors import after_commit, is_full
from objcat.errors import AlreadyDone, CommitUnknown, ObjcatError, SharedTransaction
from objcat.timeline.attempt import CommitAttempt, Committed, Conflicted
from objcat.timeline.commit import Committer
from objcat.timeline.commit_errors import outcome_unknown_after
from objcat.timeline.entry import Action, Txn
from objcat.timeline.intents import remove_files
from objcat.timeline.log_state import LogState
from objcat.timeline.process_log import BaseCheck
from objcat.timeline.side_objects import StoredChanges
from objcat.timeline.turns import TurnSeeker


class CommitSession:
    """A context manager around the work of a transaction and its attempts to commit. For one thread.

    Announce the transaction first, then enter the block. How the block ends decides:

    | the block ends with | files | intent |
    |---|---|---|
    | a commit | those in `superseded` are deleted, the others stay | deleted, with the plan that was executed |
    | no commit, or an error while no slot can be its own | deleted | deleted last |
    | `CommitUnknown` | stay | stays: `resolve` settles it |
    | an error from outside while a slot may be its own | stay | stays; `CommitUnknown` is raised from the error |
    | `SharedTransaction`, or the end of the process | stay | stays, without further heartbeats |
    """

    def __init__(self, committer: Committer, txn: Txn, *, plan: Txn | None = None, waits: bool = False) -> None:
        """Args:
        plan: The scheduled plan that the transaction executes.
        waits: Whether the block ends only when the intent is gone.
        """
        self.committer = committer
        self.txn = txn
        self._plan = plan
        self._waits = waits
        self._seeker = TurnSeeker(committer.fileio, txn)
        self._intent: Future[int] | None = None
        self._committed: Committed | None = None
        self._slot_may_be_own = False
        self.check = BaseCheck(committer.fileio)
        """Of the base. `announce` runs it; the caller of `announce_if_slow` runs it beside its work."""
        self.superseded: list[str] = []
        """Keys of objects that the transaction wrote, and that its entry does not name."""

    def announce(self, action: Action, base: LogState, *, engine: str) -> Callable[[], int]:
        """See `Committer.announce`. Returns a function that waits for the store and returns the clock skew in ms."""
        self._intent = self.committer.announce(self.txn, action, base, engine=engine, plan_of=self._plan, check=self.check)
        return self._intent.result

    def announce_if_slow(self, action: Action, base: LogState, *, engine: str) -> Callable[[], int]:
        """See `Committer.announce_if_slow`."""
        return self.committer.announce_if_slow(self.txn, action, base, engine=engine)

    def try_commit(
        self, candidate: CommitAttempt, *, skew_ms: int, changes: StoredChanges | None = None, hurries: bool = False
    ) -> Committed | Conflicted:
        """See `Committer.try_commit` for arguments and errors."""
        self._slot_may_be_own = True
        outcome = self.committer.try_commit(
            candidate, skew_ms=skew_ms, changes=changes, hurries=hurries, seeker=self._seeker, check=self.check
        )
        if isinstance(outcome, Committed):
            self._committed = outcome
        else:
            self._slot_may_be_own = False
        return outcome

    def commit(self, candidate: CommitAttempt, *, skew_ms: int) -> Committed:
        """`try_commit`, tried once. Raises CommitConflict instead of returning Conflicted."""
        outcome = self.try_commit(candidate, skew_ms=skew_ms)
        if isinstance(outcome, Conflicted):
            raise outcome.error()
        return outcome

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if error is None and self._committed is not None:
            self._end_committed(self._committed)
        elif error is None:
            self._end_uncommitted(plan_is_settled=False)
        elif isinstance(error, CommitUnknown):
            pass  # `Committer.try_commit` has taken care of the intent.
        elif not isinstance(error, Exception) or self._is_shared(error):
            self.committer.intents.stop_heartbeat(self.txn)
        elif self._leaves_doubt(error):
            self.committer.intents.leave(self.txn)
            raise outcome_unknown_after(self.txn, error) from error
        else:
            # Whatever went wrong, also a failed Spark job: it claimed no slot, or every slot that it tried belongs to another writer.
            self._end_uncommitted(plan_is_settled=isinstance(error, AlreadyDone))

    def _leaves_doubt(self, error: Exception) -> bool:
        """Whether an error may hide a commit. Errors of objcat and of the store say that a claimed slot is not ours."""
        is_from_outside = is_full(error) or not isinstance(error, (ObjcatError, FileIOError))
        return self._committed is not None or (self._slot_may_be_own and is_from_outside)

    def _end_committed(self, committed: Committed) -> None:
        with after_commit(committed.entry.slot):
            if self.superseded:
                self.committer.fileio.env.submit_io(partial(remove_files, self.committer.fileio, self.superseded, why=self.txn))
            retracted = self.committer.delete_intent(self.txn, plan=self._plan)
            if self._waits:
                retracted.result()

    def _end_uncommitted(self, *, plan_is_settled: bool) -> None:
        self.committer.discard(self.txn, plan=self._plan if plan_is_settled else None)

    def _is_shared(self, error: Exception) -> bool:
        """Whether another operation has the same id. Then the files under the id may be the other's."""
        return isinstance(error, SharedTransaction) or (
            self._intent is not None and isinstance(self._intent.exception(), SharedTransaction)
        )
