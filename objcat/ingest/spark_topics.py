"""`ingest_topics`: topics of Kafka by executors of Spark, in place of the one process that `objcat ingest` is.

Spark's own source reads the messages between two offsets of every partition. Executors decode them by the decoders of `objcat ingest`, and
combine them to one row for each key. The rows of all tables, the dead letters and the offsets are one commit, so that either way of reading
goes on where the other one has stopped.
"""

from __future__ import annotations

import logging
import pickle
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from fileio.env import Env, default_env
from objcat.engine.spooled_batch import RowSpool
from objcat.errors import IngestStopped, InvalidInput, TooManyBadRecords
from objcat.ingest.change_applier import ChangeApplier
from objcat.ingest.change_batch import TableWrite, WriteAction
from objcat.ingest.config import IngestConfig
from objcat.ingest.followed_tables import FollowedTables
from objcat.ingest.ingest_metrics import IngestMetrics
from objcat.ingest.kafka.batches import MessageBatches, SchemaNotes, place_text
from objcat.ingest.kafka.compacted import STORED_SHARE
from objcat.ingest.kafka.position import BEGINNING, KafkaPosition
from objcat.ingest.kafka.settings import KafkaSettings, kafka_settings
from objcat.ingest.kafka.source import KafkaSource
from objcat.ingest.kafka.topic_reader import TopicReader
from objcat.ingest.kafka.topic_rows import ROW_SCHEMA, FoundSchema, Note, decode_messages
from objcat.ingest.model import BadRecord, Change, ChangeKind, SchemaChanged, SourceTable, SourceTransaction, TableTruncated
from objcat.ingest.reduced_changes import (
    BAD,
    COUNT,
    DATA,
    GROUP,
    NULLED,
    KnownSchema,
    RowGroup,
    partial_rows,
    reduce_changes,
    reduced_schema,
)
from objcat.ingest.requests import requests_after, take_skip
from objcat.ingest.routes import HISTORY, RoutedTable, Router
from objcat.ingest.sink import LakeSink
from objcat.lake.lake import Lake

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from objcat.spark.topic_frames import CachedRows

logger = logging.getLogger("objcat")

DEAD_MAX = 10_000
"""So many dead letters of one batch the driver may have."""
_CHANGES = tuple(str(kind) for kind in ChangeKind)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicsResult:
    """What was read.

    Attributes:
        slot: of the last commit; None where nothing was new.
        commits: how many there were.
        messages: that were read, without those that no reader sees.
        dead: of them, those that went to the dead letters.
    """

    slot: int | None
    commits: int
    messages: int
    dead: int


def ingest_topics(
    config: IngestConfig,
    lake: Lake,
    spark: SparkSession,
    *,
    messages_max: int = 1_000_000,
    kafka_options: Mapping[str, str] | None = None,
    env: Env | None = None,
) -> TopicsResult:
    """Bring the tables of topics up to where the topics are now, in batches that are one commit each.

    It goes on from the last commit, whether that was made here or by `objcat ingest`. After any end, also a kill of the driver, the next
    call does the same. A second process that reads the same source is refused by the position. The connector of Spark for Kafka must be in
    `spark.jars` or `spark.jars.packages`, and executors need objcat with the extra `ingest-kafka`.

    Args:
        config: of the ingest, with the kind "kafka".
        lake: the lake.
        spark: the session.
        messages_max: about so many messages are one commit.
        kafka_options: settings of the Java client, such as `security.protocol`. Those of `[source.options]` are for another client.
        env: clock and threads.

    Returns:
        What was read.

    Raises:
        InvalidInput: the configuration asks for what one process alone does; the message names the command.
        IngestStopped: another process read this source meanwhile, or the batch has what one process alone does. Its rows are not visible.
        PositionGone: messages, or deletes of a compacted topic, expired before they were read; or a topic was made again.
        SourceAway: brokers or the registry do not answer.
        SparkJobFailed, SparkJobLost: a job failed. Nothing of its batch is visible.
        MissingDependency: this Spark has no source for Kafka.
    """
    env = env or default_env()
    settings = _checked(config, kafka_settings(config) if config.kind == "kafka" else None, messages_max, kafka_options)
    router = Router(config)
    source = KafkaSource(config, settings, router, env)
    try:
        sink = LakeSink(lake, config, router.dead_table(), env)
        tables = FollowedTables(source, sink, router, IngestMetrics(config.name))
        sink.ensure_dead_letters()
        tables.load(sink.load())
        reading = _Reading(config, settings, lake, spark, source, sink, tables, dict(kafka_options or {}), env)
        return reading.run(messages_max)
    finally:
        source.close()


def _checked(
    config: IngestConfig, settings: KafkaSettings | None, messages_max: int, kafka_options: Mapping[str, str] | None
) -> KafkaSettings:
    """The settings, where Spark can do what they ask for. Raises InvalidInput."""
    local = f"Nothing was done. Let `objcat ingest run {config.path}` read them"
    if settings is None:
        raise InvalidInput(f"Sources of the kind {config.kind!r} cannot be read by Spark as topics are. {local}.")
    if settings.transactions is not None:
        raise InvalidInput(
            f"[source] in {config.path} names the topic {settings.transactions!r}, so transactions of the database are to stay whole. One "
            f"process alone does that. {local}, or leave `transactions` out: then no slot is called consistent."
        )
    if settings.options and kafka_options is None:
        raise InvalidInput(
            f"[source.options] in {config.path} has settings of librdkafka, and Spark reads by the Java client. Nothing was done. Give its "
            "settings, such as kafka_options={'security.protocol': 'SSL'}."
        )
    if messages_max < 1:
        raise InvalidInput(f"messages_max is {messages_max}. Nothing was done. Give 1 or more.")
    return settings


@dataclass(slots=True)
class _Batch:
    """Messages of one commit. ranges: by topic and partition. position: after it. expired: what was left out on request."""

    ranges: dict[tuple[str, int], tuple[int, int]]
    position: KafkaPosition
    truncated: list[Change]
    expired: list[Change]


@dataclass(slots=True)
class _FoundTopic:
    """What the messages of a topic have.

    counts: by kind. joined: see `TopicPosition`. truncated: the table, where there is a truncation. from_offset: of the last one, or -1.
    """

    joined: dict[str, int]
    counts: dict[str, int] = field(default_factory=dict)
    schemas: dict[str, FoundSchema] = field(default_factory=dict)
    truncated: SourceTable | None = None
    from_offset: int = -1

    @property
    def changes(self) -> int:
        return sum(self.counts.get(kind, 0) for kind in _CHANGES)


@dataclass(slots=True)
class _Reading:
    config: IngestConfig
    settings: KafkaSettings
    lake: Lake
    spark: SparkSession
    source: KafkaSource
    sink: LakeSink
    tables: FollowedTables
    options: Mapping[str, str]
    env: Env
    asked_ms: int = 0
    kept_ms: Mapping[str, int] = field(default_factory=dict)
    slot: int | None = None
    commits: int = 0
    messages: int = 0
    dead: int = 0

    def run(self, messages_max: int) -> TopicsResult:
        """Read up to where the topics are now."""
        self._take_requests()
        self.tables.check_restored()
        if self.tables.has_changed:
            self._commit([], [], {})
        reader = self.source.reader()
        self.asked_ms = self.env.now_ms()
        heads = self.source.cluster.heads(self.source.read_topics())
        self.kept_ms = self.source.cluster.delete_retentions_ms(heads)
        batch = self._next(reader, heads, messages_max, is_first=True)
        while batch is not None:
            self._read(reader, batch)
            batch = self._next(reader, heads, messages_max)
        return TopicsResult(slot=self.slot, commits=self.commits, messages=self.messages, dead=self.dead)

    def _take_requests(self) -> None:
        """Do what was asked of this ingest. Raises InvalidInput for what one process alone does."""
        state = self.tables.state
        for request in requests_after(self.lake, self.config, state.requests):
            if request.kind == "skip":
                take_skip(self.lake, self.config, state, request)
            elif request.kind == "resnapshot_all":
                self.tables.begin_again()
                state = self.tables.state
            else:
                self.tables.read_again(request.what)
            state.requests = request.number
            self.tables.has_changed = True
        if state.skips:
            raise InvalidInput(
                f"It was asked to leave out {state.skips[0]}, which one process alone does. Nothing was done. Run "
                f"`objcat ingest once {self.config.path}` first."
            )

    # ---- which messages

    def _next(
        self, reader: TopicReader, heads: Mapping[str, Mapping[str, int]], messages_max: int, *, is_first: bool = False
    ) -> _Batch | None:
        """The messages of the next commit; None where everything before the heads is in the lake."""
        before = self.tables.state.position
        position = KafkaPosition.of(before)
        truncated = list(reader.truncation(position).changes) if position.truncate else []
        places = [(topic, int(number)) for topic, numbers in heads.items() for number in numbers]
        reader.check_ids(set(heads), position)
        left_out = MessageBatches(position, SchemaNotes(self.source.describe))
        reader.check_offsets({place: position.next_offset(*place) for place in places}, position, left_out)
        if is_first:
            reader.check_deletes(set(places), position, left_out)
        expired = [change for transaction in left_out.finished() for change in transaction.changes]
        fresh = [place for place in places if position.next_offset(*place) == BEGINNING]
        oldest = self.source.cluster.offsets(fresh, newest=False)
        starts = {place: oldest.get(place, 0) if place in oldest else position.next_offset(*place) for place in places}
        ends = {(topic, int(number)): end for topic, numbers in heads.items() for number, end in numbers.items()}
        ranges = _ranges(starts, ends, messages_max)
        for (topic, partition), end in ends.items():
            until = ranges[topic, partition][1] if (topic, partition) in ranges else max(end, starts[topic, partition])
            if position.next_offset(topic, partition) < until:
                position.advance(topic, partition, until)
                # Spark's source does not say of which epoch a message is.
                position.forget_epoch(topic, partition)
        self._note_deletes(position, heads, has_rows=bool(ranges), is_first=is_first)
        if not ranges and not truncated and not expired and position.stored() == dict(before):
            return None
        return _Batch(ranges, position, truncated, expired)

    def _note_deletes(self, position: KafkaPosition, heads: Mapping[str, Mapping[str, int]], *, has_rows: bool, is_first: bool) -> None:
        """Let the position say when compacted topics were read to their end. See `CompactedTopics`."""
        for name, kept_ms in self.kept_ms.items():
            topic = position.topics.get(name)
            if topic is None:
                continue
            passed_ms = None if topic.read_ms is None else self.asked_ms - topic.read_ms
            # What was missed is in the dead letters, or nothing was.
            is_known = passed_ms is None or (is_first and passed_ms > kept_ms)
            is_at_end = all(topic.next.get(number, BEGINNING) >= end for number, end in heads[name].items())
            if is_known or (is_at_end and (has_rows or (passed_ms or 0) > kept_ms // STORED_SHARE)):
                topic.read_ms = self.asked_ms

    # ---- one commit

    def _read(self, reader: TopicReader, batch: _Batch) -> None:
        """Read a batch and commit it."""
        held: list[CachedRows] = []
        try:
            if not batch.ranges:
                self._write(batch, None, {}, 0, held)
                return
            rows = self._decoded(batch)
            held.append(rows)
            found, messages, at_ms = self._look(rows, batch)
            # All of them were of the topics that are known.
            reader.check_ids({topic for topic, _ in batch.ranges}, batch.position)
            self._write(batch, rows, found, at_ms, held)
            self.messages += messages
        finally:
            for one in held:
                one.release()

    def _decoded(self, batch: _Batch) -> CachedRows:
        from objcat.spark.topic_frames import CachedRows, message_frame

        frame = message_frame(self.spark, self.settings.brokers, batch.ranges, self.options)
        what = f"objcat: read topics for {self.config.name}"
        # Rows that are computed again begin with the same.
        deleted = {topic: dict(batch.position.topics[topic].deleted) for topic, _ in batch.ranges}
        return CachedRows(frame, decode_messages, (self.config, deleted), ROW_SCHEMA, what=what)

    def _look(self, rows: CachedRows, batch: _Batch) -> tuple[dict[str, _FoundTopic], int, int]:
        """What the messages have: counts and schemas by topic, how many they are, and the time of the newest one."""
        found: dict[str, _FoundTopic] = {}
        messages, at_ms, newest = 0, 0, ("", -1)
        counted = rows.grouped(
            ("topic", "partition", "kind"), rows="count(1)", messages="count_if(part = 0)", last="max(offset)", at_ms="max(at_ms)"
        )
        for row in counted:
            topic = found.setdefault(row["topic"], _FoundTopic(batch.position.topics[row["topic"]].joined))
            topic.counts[row["kind"]] = topic.counts.get(row["kind"], 0) + row["rows"]
            messages, at_ms = messages + row["messages"], max(at_ms, row["at_ms"])
            newest = max(newest, (f"{row['topic']}/{row['partition']}@{row['last']}", row["at_ms"]), key=itemgetter(1))
            if row["kind"] == Note.TRUNCATE:
                topic.from_offset = row["last"]
                self._check_truncation(row["topic"])
        columns = ("topic", "at_ms", "partition", "offset", "part", "kind", "schema", "committed_ms", "data")
        told = rows.few(f"kind IN ('{Note.SCHEMA}', '{Note.TRUNCATE}', '{Note.DELETED}')", *columns)
        for row in sorted(told, key=lambda one: tuple(one)[1:5]):
            topic, said = found[row["topic"]], pickle.loads(bytes(row["data"]))  # noqa: S301 - our executors wrote it
            if row["kind"] == Note.TRUNCATE:
                topic.truncated = said
                continue
            if row["kind"] == Note.DELETED:
                deleted = batch.position.topics[row["topic"]].deleted
                deleted.pop(str(row["partition"]), None)
                if said is not None:
                    deleted[str(row["partition"])] = said
                continue
            topic.schemas.setdefault(row["schema"], said)
            if (since_ms := row["committed_ms"]) is not None:
                topic.joined.update({name: min(since_ms, topic.joined.get(name, since_ms)) for name in said.defaults})
        if messages:
            batch.position.at = place_text(newest[0], messages)
        return found, messages, at_ms

    def _check_truncation(self, topic: str) -> None:
        partitions = len(self.source.read_topics()[topic].partitions)
        if partitions > 1:
            raise IngestStopped(
                f"The topic {topic!r} has a truncation and {partitions} partitions, so which rows came before it is not known. Nothing of "
                "this batch was written. Let Debezium write transaction metadata, name its topic by `transactions` in [source], and run "
                f'`objcat ingest run {self.config.path}`. Or set truncates = "ignore".'
            )

    def _write(self, batch: _Batch, rows: CachedRows | None, found: Mapping[str, _FoundTopic], at_ms: int, held: list[CachedRows]) -> None:
        """Make the steps of a commit, and commit them with the position."""
        applier = ChangeApplier(self.tables, self.source, self.sink, memory_bytes=self.config.run.transaction_bytes)
        # Nothing of it is committed before the end, and a batch that fails ends the call.
        changes = self._noted(batch, found)
        applier.apply(SourceTransaction(position=batch.position.stored(), changes=changes, is_consistent=False, count=len(found)))
        steps, bad = applier.drain()
        bad = list(bad)
        spool = RowSpool(bytes_max=self.config.run.transaction_bytes)
        count = sum(topic.changes + topic.counts.get(Note.BAD, 0) for topic in found.values())
        if rows is not None:
            bad += self._bad(rows, f"kind = '{Note.BAD}'", sum(topic.counts.get(Note.BAD, 0) for topic in found.values()), count, bad)
            for topic, info in found.items():
                routed = self._routed(topic, info, applier)
                if routed is not None:
                    reduced = self._reduced(rows, topic, info, routed)
                    held.append(reduced)
                    steps += self._steps(reduced, routed, spool, count, bad)
        self._commit(steps, bad, {} if not at_ms else {"source_ms": str(at_ms)})

    def _noted(self, batch: _Batch, found: Mapping[str, _FoundTopic]) -> Iterator[Change]:
        """What says no row: truncations, schemas in the order of their first rows, and what was left out on request."""
        yield from batch.expired
        yield from batch.truncated
        for info in found.values():
            for schema in info.schemas.values():
                self.source.describe(schema.table)
                yield SchemaChanged(table=schema.table, defaults=schema.defaults)
            if info.truncated is not None:
                yield TableTruncated(table=info.truncated)

    def _routed(self, topic: str, info: _FoundTopic, applier: ChangeApplier) -> RoutedTable | None:
        """Where the rows of a topic go; None where they go nowhere. Raises IngestStopped."""
        routed, progress = self.tables.routed(topic), self.tables.state.tables.get(topic)
        if routed is None or progress is None or not info.changes:
            return None
        if not all(applier.may_change(routed, topic, kind) for kind in ChangeKind if info.counts.get(kind)):
            return None
        if progress.aside is not None or not self.sink.has_table(routed.name):
            # A table that is set aside has what it had before this batch.
            return None
        if info.counts.get(Note.MOVED) and not routed.appends:
            raise IngestStopped(
                f"The topic {topic!r} has {info.counts[Note.MOVED]} rows whose key changed, and of which values were not sent: they come "
                "from rows of the lake. One process alone does that. Nothing of this batch was written. Run `objcat ingest once "
                f"{self.config.path}`, which goes on from here, and then this again."
            )
        return routed

    def _reduced(self, rows: CachedRows, topic: str, info: _FoundTopic, routed: RoutedTable) -> CachedRows:
        """The rows of a table, one for each key."""
        from objcat.spark.topic_frames import CachedRows

        kinds = ", ".join(f"'{kind}'" for kind in _CHANGES)
        where = f"topic = {_literal(topic)} AND kind IN ({kinds})"
        if routed.route.deletes != HISTORY:
            where += f" AND offset > {info.from_offset}"
        frame = rows.in_place(where) if routed.appends else rows.by_key(where, count=info.changes)
        ever = self.tables.state.tables[topic].columns
        schemas: dict[str, KnownSchema] = {}
        for name, one in info.schemas.items():
            missing = tuple(self.sink.missing_columns(routed, one.table, ever))
            joins = tuple((field.name, info.joined[field.name]) for field in missing if field.name in info.joined)
            schemas[name] = KnownSchema(one.table, missing, joins)
        columns = self.lake.table(routed.name).schema
        what = f"objcat: combine changes of {routed.name}"
        return CachedRows(frame, reduce_changes, (routed, schemas, columns), reduced_schema(columns), what=what)

    def _steps(self, reduced: CachedRows, routed: RoutedTable, spool: RowSpool, count: int, bad: list[BadRecord]) -> list[TableWrite]:
        """The steps that write the rows of a table. `bad`: gets those that cannot be decoded."""
        counts = {row[GROUP]: row["rows"] for row in reduced.grouped((GROUP,), rows=f"sum({COUNT})")}
        self.tables.state.nulled += counts.pop(NULLED, 0)
        bad += self._bad(reduced, f"{GROUP} = {BAD}", counts.pop(BAD, 0), count, bad)
        told = reduced.few(f"{COUNT} = 0", DATA)
        groups: dict[int, RowGroup] = {}
        for row in told:
            group: RowGroup = pickle.loads(bytes(row[DATA]))  # noqa: S301 - our own executors wrote it
            groups[group.number] = group
        steps: list[TableWrite] = []
        places = {name: str(at) for at, name in enumerate(self.lake.table(routed.name).schema.names)}
        for number, group in sorted(groups.items()):
            where = f"{GROUP} = {number} AND {COUNT} > 0"
            if group.action is WriteAction.UPSERT_PARTIAL:
                parts = [spool.keep(partial_rows(bytes(data))) for data in reduced.each(where, DATA)]
                steps += [TableWrite(routed=routed, action=group.action, rows=part) for part in parts]
            elif counts[number]:
                frame: Any = reduced.chosen(where, {name: places[name] for name in group.columns})
                steps.append(TableWrite(routed=routed, action=group.action, rows=frame))
        return steps

    def _bad(self, rows: CachedRows, where: str, number: int, count: int, known: Sequence[BadRecord]) -> list[BadRecord]:
        """Records that could not be decoded. Raises TooManyBadRecords before the driver has them."""
        limits = self.config.dead_letters
        allowed = min(limits.records_max * max(1, -(-count // limits.window)), DEAD_MAX)
        if not number:
            return []
        if number + len(known) > allowed:
            sample = _records(next(iter(rows.each(where, "data"))))[0]
            said = self.config.hide(f"{sample.table}: {sample.error}")
            raise TooManyBadRecords(
                f"{number + len(known)} of {count} records of {self.config.name!r} could not be decoded, and {allowed} are allowed. One is "
                f"of {said}. This batch was not committed. Correct the source, or raise records_max in [dead_letters] of "
                f"{self.config.path}. At most {DEAD_MAX} of one batch can be written; messages_max makes batches smaller."
            )
        return [record for data in rows.each(where, "data") for record in _records(data)]

    def _commit(self, steps: Sequence[TableWrite], bad: Sequence[BadRecord], more: Mapping[str, str]) -> None:
        state = self.tables.state
        self.tables.handover.settle(is_quiet=not steps)
        state.dead += len(bad)
        position = self.source.position_text(state.position)
        metadata = {"source": self.config.name, "position": position, "consistent": "true" if state.is_consistent else "false", **more}
        done = self.sink.commit(steps, state, bad, metadata)
        self.tables.committed()
        self.source.confirm(state.position)
        self.slot, self.commits, self.dead = done.slot, self.commits + 1, self.dead + len(bad)


def _records(data: Any) -> list[BadRecord]:
    found = pickle.loads(bytes(data))  # noqa: S301 - our own executors wrote it
    return [found] if isinstance(found, BadRecord) else list(found)


def _ranges(
    starts: Mapping[tuple[str, int], int], ends: Mapping[tuple[str, int], int], messages_max: int
) -> dict[tuple[str, int], tuple[int, int]]:
    """Which offsets are read next: all of them, or of each partition a part that is as large as its part of all."""
    behind = {place: end - starts[place] for place, end in ends.items() if end > starts[place]}
    total = sum(behind.values())
    share = min(1.0, messages_max / total) if total else 1.0
    return {place: (starts[place], starts[place] + max(1, int(count * share))) for place, count in behind.items()}


def _literal(value: str) -> str:
    """A text in SQL of Spark. Names of topics have letters, digits, dots, underscores and hyphens alone."""
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
