"""`Ingest`: follows a source into a lake, once or until it is stopped. Begin with `Ingest.run`.

One thread reads the stream (`StreamReader`), this one does the rest: it decides which changes count (`Handover`), combines them
(`ChangeBatch`), and commits rows, position and dead letters in one slot (`LakeSink`). Only after that the source may forget (`confirm`).
What is in memory is worth nothing: after any end, the next run goes on from the state of the last commit.
"""

from __future__ import annotations

import logging
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from fileio.env import Env, default_env
from fileio.errors import Throttled, Unavailable
from objcat.errors import (
    CommitUnknown,
    IngestStopped,
    InvalidInput,
    SourceAway,
    TableClosed,
    TableNotFound,
    WriterFenced,
)
from objcat.ingest.change_applier import ChangeApplier
from objcat.ingest.change_batch import TableWrite
from objcat.ingest.commit_limits import BadShare, DueTimes
from objcat.ingest.config import IngestConfig
from objcat.ingest.followed_tables import FollowedTables
from objcat.ingest.handover import IngestState
from objcat.ingest.ingest_lag import IngestLag
from objcat.ingest.ingest_metrics import IngestMetrics
from objcat.ingest.model import BadRecord, ChangeSource, Position, SourceTransaction
from objcat.ingest.requests import IngestRequest, requests_after, take_skip
from objcat.ingest.routes import Router
from objcat.ingest.sink import LakeSink
from objcat.ingest.snapshots import SnapshotReader
from objcat.ingest.stream_reader import StreamReader
from objcat.lake.lake import Lake

logger = logging.getLogger("objcat")

WAIT_S = 0.05
"""How long one wait for the stream takes at most: meanwhile something else may be due."""
AWAY_PAUSE_S_MIN, AWAY_PAUSE_S_MAX = 0.1, 10.0
END_S_MAX = 10.0
FRESH_BEATS = 3
"""A run that has not reported for so many beats waits for something."""
_STORE_AWAY = (Throttled, Unavailable, CommitUnknown, WriterFenced)
"""What the bucket raises when it did not answer for longer than a request is repeated. The next session learns what was committed."""

OpenSource = Callable[[IngestConfig, Router, Env], ChangeSource]
"""Opens a source; `objcat.ingest.sources.open_source`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestProgress:
    """Where a run is, for people.

    Args:
        slot: of its last commit, None before the first.
        is_consistent: whether all tables are handed over to the stream.
        table: that is being read, None when none is.
        rows: of that table so far.
        changes: that the run has applied.
        commits: of the run.
        lag_s: age of the newest committed change, None while that is not known.
    """

    slot: int | None
    is_consistent: bool
    table: str | None
    rows: int
    changes: int
    commits: int
    lag_s: float | None


class Ingest:
    """An ingest. For one thread; `stop` may be called by any.

    Args:
        config: what to do.
        lake: the lake.
        open_source: opens the source; again after it was away.
        tell: is called after each commit.
        env: clock and threads.
    """

    def __init__(
        self,
        config: IngestConfig,
        lake: Lake,
        open_source: OpenSource,
        *,
        tell: Callable[[IngestProgress], None] | None = None,
        env: Env | None = None,
    ) -> None:
        self.metrics = IngestMetrics(config.name)
        self._config = config
        self._lake = lake
        self._open_source = open_source
        self._tell = tell
        self._env = env or default_env()
        self.lag = IngestLag(self._env, fresh_s=FRESH_BEATS * config.run.beat_s)
        self.metrics.compute("lag_seconds", self.lag.seconds)
        self.metrics.compute("clock_offset_seconds", lambda: self.lag.offset_s)
        self._router = Router(config)
        self._is_stopped = False
        self._unsettled_commit: str | None = None
        self._target: Position | None = None

    def stop(self) -> None:
        """Let `run` or `once` end after the commit in progress."""
        self._is_stopped = True

    def follows(self, table: str) -> bool:
        """Whether a route follows a table of that name."""
        return self._router.follows(table)

    def once(self) -> IngestState:
        """Go on to where the source is now, with all tables handed over. Returns the state that was committed. A source that was never
        reached is not waited for.

        Raises:
            IngestStopped, ObjcatError: what is committed stays.
        """
        self._target = None
        return self._follow(is_once=True)

    def target(self, source: ChangeSource) -> Position:
        """Where `once` ends: where the source was when it was asked first. Sessions that begin again have the same end."""
        if self._target is None:
            self._target = source.head()
        return self._target

    def run(self) -> IngestState:
        """Go on until `stop`. A source or a bucket that is away is waited for, `away_s` at most. Returns and raises as `once`."""
        return self._follow(is_once=False)

    def _follow(self, *, is_once: bool) -> IngestState:
        away_since_s: float | None = None
        pause_s = AWAY_PAUSE_S_MIN
        was_reached = False
        careful_changes: int | None = None
        while True:
            session: IngestSession | None = None
            is_careful = careful_changes is not None
            try:
                source = self._open_source(replace(self._config, is_careful=is_careful), self._router, self._env)
                session = IngestSession(self, source, careful_changes=careful_changes)
                return session.follow(is_once=is_once)
            except (InvalidInput, TableNotFound, TableClosed) as error:
                if session is None or not session.is_streaming:
                    raise
                if session.meets_other_tables():
                    logger.warning("Tables of the lake are not those that %r wrote, so it looks at them: %s", self._config.name, error)
                    continue
                if is_careful or not isinstance(error, InvalidInput):
                    raise
                # With one transaction in each commit, the error names the one that is refused.
                logger.warning("A batch of %r was refused. Its transactions are tried one by one: %s", self._config.name, error)
                careful_changes = session.waiting_changes
            except BeginAgain:
                if session is not None and session.is_through:
                    logger.warning("The batch of %r that was refused is committed. It goes on with whole batches.", self._config.name)
                    careful_changes = None
            except (SourceAway, *_STORE_AWAY) as error:
                if session is not None and session.unsettled_commit is not None:
                    self._unsettled_commit = session.unsettled_commit
                is_source = isinstance(error, SourceAway)
                was_reached = was_reached or (session is not None and session.was_reached)
                if is_source and is_once and not was_reached:
                    # More likely a wrong address or password than a pause.
                    raise
                now_s = self._env.monotonic_s()
                if session is not None and session.has_committed:
                    away_since_s, pause_s = None, AWAY_PAUSE_S_MIN
                away_since_s = now_s if away_since_s is None else away_since_s
                if self._is_stopped or now_s - away_since_s >= self._config.run.away_s:
                    raise
                what = "source" if is_source else "bucket of the source"
                logger.warning("The %s %r is away, and is tried again: %s", what, self._config.name, self._config.hide(str(error)))
                self.metrics.add("reconnects_total" if is_source else "store_waits_total")
                self._env.sleep(pause_s)
                pause_s = min(pause_s * 2, AWAY_PAUSE_S_MAX)
            finally:
                if session is not None:
                    session.close()


class BeginAgain(Exception):
    """The state was committed, and a new session has to go on from there: with another position, another record, or whole batches."""


class IngestSession:
    """One connection to the source, from the state of the last commit on.

    Attributes:
        has_committed: whether anything was committed.
        was_reached: whether the source has answered.
        is_streaming: whether the stream was opened.

    Args:
        ingest, source: what is followed, and what is read.
        careful_changes: so many changes are committed one transaction at a time, since a batch of them was refused; None: none.
    """

    def __init__(self, ingest: Ingest, source: ChangeSource, *, careful_changes: int | None) -> None:
        self._committing = 0
        self._careful_left = careful_changes
        self.has_committed = self.was_reached = self.is_streaming = False
        self._ingest = ingest
        self._config = config = ingest._config
        self._env = env = ingest._env
        self._metrics = ingest.metrics
        self._is_careful = careful_changes is not None
        self._source = source
        self._sink = LakeSink(ingest._lake, config, ingest._router.dead_table(), env)
        self._tables = FollowedTables(source, self._sink, ingest._router, ingest.metrics)
        self._applier = ChangeApplier(self._tables, source, self._sink, memory_bytes=config.run.transaction_bytes)
        self._snapshots = SnapshotReader(self._tables, source, ingest.metrics, chunk_rows=config.run.chunk_rows, env=env)
        self._reader: StreamReader | None = None
        self._due = DueTimes(self._env.monotonic_s())
        self._bad_share = BadShare(config)
        self._newest_ms: int | None = None
        self._asked_head: Position | None = None
        self._was_consistent = False
        self._slot: int | None = None

    def close(self) -> None:
        """End the stream."""
        if self._reader is not None:
            self._reader.stop()
        self._source.close()
        if self._reader is not None:
            self._reader.join(END_S_MAX)

    @property
    def waiting_changes(self) -> int:
        """About how many changes the batch has that is being made, or committed."""
        return max(1, self._committing or self._applier.count)

    @property
    def is_through(self) -> bool:
        """Whether all changes of a batch that was refused are committed."""
        return self._careful_left is not None and self._careful_left <= 0

    @property
    def unsettled_commit(self) -> str | None:
        """The transaction of a commit that may still land; None when there is none."""
        return self._sink.unsettled

    def meets_other_tables(self) -> bool:
        """Whether tables of the lake were dropped or altered by others, so that a new session has to look at them."""
        return self._tables.lake_has_changed()

    def follow(self, *, is_once: bool) -> IngestState:
        """The loop. Returns the state of the last commit."""
        self._source.check_settings()
        self.was_reached = True
        self._sink.ensure_dead_letters()
        if self._ingest._unsettled_commit is not None:
            # One that landed is progress, so the wait begins from the shortest pause again.
            self.has_committed = self._sink.settle(self._ingest._unsettled_commit) is not None
            self._ingest._unsettled_commit = None
        self._tables.load(self._sink.load())
        self._was_consistent = self._tables.state.is_consistent
        self._take_requests()
        self._tables.check_restored()
        if self._tables.has_changed:
            self._commit()
        self._show_state()
        self._reader = StreamReader(self._source, self._tables.state.position, bytes_max=self._config.run.queue_bytes, env=self._env)
        self.is_streaming = True
        target = self._ingest.target(self._source) if is_once else None
        while not self._ingest._is_stopped:
            self._do_periodic()
            self._read_chunk()
            is_idle = self._take_transactions()
            if self._is_due() or (target is not None and is_idle and self._has_rows()):
                self._commit()
            if target is not None and is_idle and self._is_done(target):
                break
        stored = self._tables.committed_position
        is_at_end = target is not None and stored is not None and self._source.is_reached(stored, target)
        if self._has_rows() or (self._tables.has_moved and not is_at_end):
            self._commit()
        self._report()
        return self._tables.state

    # ---- steps of the loop

    def _take_transactions(self) -> bool:
        """Apply transactions until a commit is due, or the stream has none. Returns whether it has none."""
        assert self._reader is not None
        wait_s = 0.0 if self._tables.handover.unread_table() is not None else self._wait_s()
        while not self._is_due():
            transaction = self._reader.take(wait_s)
            if transaction is None:
                return True
            wait_s = 0.0
            self._apply(transaction)
        return False

    def _apply(self, transaction: SourceTransaction) -> None:
        if transaction.count and self._due.first_s is None:
            self._due.first_s = self._env.monotonic_s()
        self._applier.apply(transaction)
        self._metrics.add("changes_total", transaction.count)
        if transaction.mark is not None:
            self._metrics.add("transactions_total")
        if transaction.committed_at_ms is not None:
            self._newest_ms = transaction.committed_at_ms

    def _wait_s(self) -> float:
        if self._due.first_s is None:
            return WAIT_S
        left_s = self._due.first_s + self._tables.limits()[1] - self._env.monotonic_s()
        return max(0.0, min(WAIT_S, left_s))

    def _has_rows(self) -> bool:
        return self._applier.count > 0

    def _is_due(self) -> bool:
        """Whether a commit is due: the batch is full or old, or the state has to be stored."""
        rows_max, seconds_max = self._tables.limits()
        now_s = self._env.monotonic_s()
        if self._has_rows():
            is_old = self._due.first_s is not None and now_s - self._due.first_s >= seconds_max
            return is_old or self._is_careful or self._applier.has_left_out or self._applier.count >= rows_max
        if self._tables.has_changed or self._tables.state.is_consistent is not self._was_consistent:
            return True
        return self._tables.has_moved and now_s - self._due.committed_s >= self._config.run.idle_commit_s

    def _is_done(self, target: Position) -> bool:
        state = self._tables.state
        if not all(table.is_handed_over or table.aside is not None for table in state.tables.values()):
            return False
        return self._source.is_reached(state.position, target)

    def _read_chunk(self) -> None:
        """Read and commit one chunk of a snapshot, between transactions and when nothing else waits to be committed."""
        if self._tables.handover.unread_table() is None:
            return
        if self._has_rows():
            self._commit()
        found = self._snapshots.read()
        if found is not None:
            writes, bad = found
            self._commit(writes, bad)

    def _do_periodic(self) -> None:
        now_s, run = self._env.monotonic_s(), self._config.run
        self._note_reached()
        if now_s - self._due.beat_s >= run.beat_s:
            self._due.beat_s = now_s
            self._source.beat()
            self._report()
        if now_s - self._due.discovered_s >= run.discover_s:
            self._due.discovered_s = now_s
            self._tables.discover()
            self._take_requests()
            self._tables.check_record()

    def _take_requests(self) -> None:
        """Do what was asked of this ingest."""
        state = self._tables.state
        for request in requests_after(self._ingest._lake, self._config, state.requests):
            logger.warning("%s: request %d is taken: %s", self._config.name, request.number, request.text)
            if request.kind == "resnapshot_all":
                self._applier.drain()
                self._tables.begin_again()
                self._tables.state.requests = request.number
                self._commit()
                raise BeginAgain
            if request.kind == "skip":
                if self._has_rows():
                    self._commit()
                take_skip(self._ingest._lake, self._config, state, request)
            elif not self._source.has_snapshots:
                self._read_again(request)
            else:
                self._tables.resnapshot(request.what)
            state.requests, self._tables.has_changed = request.number, True

    def _read_again(self, request: IngestRequest) -> None:
        """Let a source without snapshots bring a table again, from what is committed."""
        if self._sink.was_restored:
            return  # All tables have to be read again.
        if self._has_rows():
            self._commit()
        if self._tables.read_again(request.what, is_left_out=request.kind == "left_out"):
            self._tables.state.requests = request.number
            self._commit()
            raise BeginAgain

    # ---- commit

    def _commit(self, steps: Sequence[TableWrite] = (), bad: Sequence[BadRecord] = ()) -> None:
        """Commit what there is, and tell the source. With `steps`, these alone."""
        began_s = self._env.monotonic_s()
        state = self._tables.state
        changes = 0
        if not steps and not bad:
            changes = self._committing = self._applier.count
            steps, bad = self._applier.drain()
        self._tables.handover.settle(is_quiet=not steps)
        position = self._source.position_text(state.position)
        rows = sum(step.rows.num_rows for step in steps if step.rows is not None)
        self._bad_share.add(rows, bad, position)
        state.dead += len(bad)
        metadata = {"source": self._config.name, "position": position, "consistent": "true" if state.is_consistent else "false"}
        if self._newest_ms is not None:
            metadata["source_ms"] = str(self._newest_ms)
        try:
            done = self._sink.commit(steps, state, bad, metadata)
        except InvalidInput as error:
            if not self._is_careful or self.meets_other_tables():
                raise
            skip = f"objcat ingest skip {shlex.join((self._config.path, position))}"
            then = ", which reads its tables again" if self._source.has_snapshots else ": then the lake lacks it"
            raise IngestStopped(
                f"The transaction of {self._config.name!r} at {position} was refused: {error} What is before it is committed. Correct the "
                f"route or the table. Or leave it out by `{skip}`{then}."
            ) from error
        self._tables.committed()
        self._source.confirm(state.position)
        self._ingest.lag.committed(self._newest_ms)
        self._note_reached()
        self.has_committed = True
        self._due.first_s, self._due.committed_s = None, self._env.monotonic_s()
        self._slot = done.slot
        self._was_consistent = state.is_consistent
        self._note_commit(self._due.committed_s - began_s, rows)
        self._committing = 0
        if self._careful_left is not None:
            self._careful_left -= changes
        if self.is_through or self._applier.has_left_out:
            raise BeginAgain

    def _note_commit(self, took_s: float, rows: int) -> None:
        metrics = self._metrics
        metrics.add("commits_total")
        metrics.add("commit_seconds_total", took_s)
        metrics.set("commit_seconds", took_s)
        metrics.add("rows_total", rows)
        metrics.set("slot", self._slot)
        self._show_state()
        if self._ingest._tell is not None:
            self._ingest._tell(self._progress())

    def _show_state(self) -> None:
        state, metrics = self._tables.state, self._metrics
        metrics.set("dead_total", state.dead)
        metrics.set("nulled_total", state.nulled)
        metrics.set("consistent", float(state.is_consistent))
        for name, table in state.tables.items():
            metrics.set("table_consistent", float(table.is_consistent), table=name)
            metrics.set("snapshot_rows", table.rows, table=name)

    def _progress(self) -> IngestProgress:
        state = self._tables.state
        unread = self._tables.handover.unread_table()
        return IngestProgress(
            slot=self._slot,
            is_consistent=state.is_consistent,
            table=unread,
            rows=0 if unread is None else state.tables[unread].rows,
            changes=int(self._metrics.value("changes_total") or 0),
            commits=int(self._metrics.value("commits_total") or 0),
            lag_s=self._ingest.lag.seconds(),
        )

    def _note_reached(self) -> None:
        """Note when everything is committed that the source had when it was asked last."""
        if self._asked_head is None or self._has_rows():
            return
        if self._source.is_reached(self._tables.state.position, self._asked_head):
            self._asked_head = None
            self._ingest.lag.reached()

    def _report(self) -> None:
        """Set the metrics of the source. A report that fails says nothing."""
        report = self._source.report()
        self._asked_head = report.head
        self._ingest.lag.asked(report.clock_ms)
        self._note_reached()
        self._metrics.set("behind_bytes", report.behind_bytes)
        self._metrics.set("behind_events", report.behind_events)
        self._metrics.set("retained_bytes", report.retained_bytes)
        if self._reader is not None:
            self._metrics.set("queue_bytes", self._reader.queued_bytes)
            self._metrics.set("queue_rows", self._reader.queued_changes)
        for warning in report.warnings:
            logger.warning("%s: %s", self._config.name, warning)
