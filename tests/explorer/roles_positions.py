"""Readers of sources: each commit is a row and the position that counts it."""

from __future__ import annotations

from dataclasses import dataclass

from objcat.errors import CommitUnknown, ObjcatError
from objcat.metadata.manifest import Manifests
from objcat.tasks.model import Operation
from objcat.timeline.position import SourcePosition, read_position
from objcat.write.table_writer import TableWriter, WriteBatch
from objcat.write.transaction import commit_parts
from tests.explorer.actors import Failed, Participant
from tests.explorer.roles import KEYS, OneFile, WatchedCommitter, mark_of, means, open_warm, warm_view

SOURCE = "s"


@dataclass(frozen=True, slots=True)
class ReadSource:
    """Reads a source: opens the log, goes on from the position there, and commits a row with the next one, so many times.

    The state of a position counts the rows. Where nobody knows whether a commit landed, the reader looks at the position again, as one does
    that was started again. bare: it commits positions without rows.
    """

    rounds: int = 1
    bare: bool = False
    source: str = SOURCE

    def __call__(self, me: Participant) -> None:
        timeline, table = open_warm(me)
        view = warm_view(me)
        writer = TableWriter(me.fileio, Manifests(me.fileio), table, [WriteBatch(OneFile(me), (0,), Operation.UPSERT)])
        for _ in range(self.rounds):
            view = timeline.refresh(view)
            known = view.log.sources.get(self.source)
            rows = 0 if known is None else read_position(me.fileio, self.source, known).state["rows"]
            position = SourcePosition(
                source=self.source, state={"rows": rows + 1, "of": me.number}, since=-1 if known is None else known.version
            )
            committer = WatchedCommitter(me)
            meant = {} if self.bare else means("put", KEYS[0], mark=mark_of(me))
            try:
                commit_parts(timeline, committer, [] if self.bare else [writer], view, metadata=meant, position=position)
            except CommitUnknown:
                continue
            except ObjcatError:
                if committer.beaten is not None:
                    me.note(Failed(committer.beaten))
                raise
