"""`KafkaCluster`: topics, offsets and consumers of a cluster, by confluent-kafka, whose errors become those of an ingest."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from fileio.errors import InvalidConfig
from fileio.optional import library
from objcat.errors import SourceAway, SourceUnfit
from objcat.ingest.config import IngestConfig
from objcat.ingest.kafka.readers import EXTRA, NEEDED_BY
from objcat.ingest.kafka.settings import KafkaSettings

logger = logging.getLogger("objcat")

NO_ID = "AAAAAAAAAAAAAAAAAAAAAA"
"""The id of a topic of brokers that have none."""
QUEUE_KBYTES_MIN = 1024
REFUSAL_S = 1.0
"""Within about that time brokers refuse a user, or the client a certificate."""
_REFUSED = (
    "_AUTHENTICATION",
    "SASL_AUTHENTICATION_FAILED",
    "TOPIC_AUTHORIZATION_FAILED",
    "GROUP_AUTHORIZATION_FAILED",
    "CLUSTER_AUTHORIZATION_FAILED",
    "_INVALID_ARG",
)
_UNKNOWN = ("UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION")
_VAGUE = ("_TRANSPORT", "_TIMED_OUT", "_TIMED_OUT_QUEUE", "_ALL_BROKERS_DOWN")
_NETWORK = ("_TRANSPORT", "_SSL", "_RESOLVE")
"""What ends a connection. Its text says more than the time that ran out."""
_UNFIT_CERTIFICATE = "certificate verify failed"
"""What OpenSSL says of a certificate that does not fit. Other errors of TLS may pass by themselves."""
_silent = logging.getLogger("objcat.kafka.client")
"""librdkafka writes a line for each attempt to connect. What matters comes as an error."""
_silent.addHandler(logging.NullHandler())
_silent.propagate = False


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """A topic. id: empty where the brokers have none. partitions: their numbers."""

    id: str
    partitions: tuple[int, ...]


class KafkaCluster:
    """Connections to a cluster. Its questions are safe for many threads.

    Raises:
        InvalidConfig: librdkafka refuses a setting.
        MissingDependency: confluent-kafka is not installed.
    """

    def __init__(self, config: IngestConfig, settings: KafkaSettings) -> None:
        self.kafka: Any = library("confluent_kafka", needed_by=NEEDED_BY, extra=EXTRA)
        self._admin_library: Any = library("confluent_kafka.admin", needed_by=NEEDED_BY, extra=EXTRA)
        self._config = config
        self._settings = settings
        self._pattern = re.compile(settings.topics)
        self._last_error: Any = None
        self._options = {
            "bootstrap.servers": settings.brokers,
            "client.id": f"objcat-{config.name}",
            "error_cb": self._note_error,
            "logger": _silent,
            **settings.options,
        }
        self._codes = self.kafka.KafkaError
        self._retentions_ms: dict[str, int | None] = {}
        self._admin = self._make(lambda: self._admin_library.AdminClient(dict(self._options)))

    def consumer(self) -> Any:
        """A consumer that neither joins a group nor moves by itself to another offset."""
        kbytes = max(QUEUE_KBYTES_MIN, self._config.run.queue_bytes // 2048)
        options = {
            # Messages that were read ahead of those that are decoded.
            "queued.max.messages.kbytes": kbytes,
            "fetch.max.bytes": min(50 * 1024 * 1024, kbytes * 1024),
            **self._options,
            "group.id": self._settings.group or f"objcat-{self._config.name}",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "error",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
        return self._make(lambda: self.kafka.Consumer(options))

    def topics(self) -> dict[str, TopicInfo]:
        """The topics that are read, by name, with that of transactions. Raises SourceAway, SourceUnfit."""
        with self.errors("asking for its topics"):
            found = self._listed()
        names = [name for name in found if self.is_read(name)]
        ids = self.topic_ids(names)
        return {name: TopicInfo(ids[name], tuple(sorted(found[name].partitions))) for name in sorted(names) if name in ids}

    def is_read(self, topic: str) -> bool:
        """Whether the configuration names a topic."""
        if topic == self._settings.transactions:
            return True
        return not topic.startswith("__consumer_") and topic != "__transaction_state" and self._pattern.fullmatch(topic) is not None

    def topic_ids(self, topics: Sequence[str]) -> dict[str, str]:
        """The ids of topics, by name. Those that are not there are left out. Raises SourceAway, SourceUnfit."""
        if not topics:
            return {}
        found = {}
        with self.errors("asking for its topics"):
            asked = self._admin.describe_topics(self.kafka.TopicCollection(list(topics)), request_timeout=self._settings.connect_s)
            for name, future in asked.items():
                try:
                    made = str(future.result().topic_id)
                except self.kafka.KafkaException as error:
                    if self.is_unknown(error.args[0]):
                        continue
                    raise
                found[name] = "" if made == NO_ID else made
        self._last_error = None  # They answer, whatever one of them refused before.
        return found

    def offsets(self, partitions: Iterable[tuple[str, int]], *, newest: bool, committed: bool = True) -> dict[tuple[str, int], int]:
        """Offsets of partitions. Raises SourceAway, SourceUnfit.

        Args:
            partitions: topics with numbers.
            newest: where the next message will be; otherwise where the oldest one is.
            committed: before messages of transactions that are open.
        """
        spec = self._admin_library.OffsetSpec
        asked = {self.kafka.TopicPartition(*partition): spec.latest() if newest else spec.earliest() for partition in partitions}
        if not asked:
            return {}
        level = self.kafka.IsolationLevel
        found = {}
        with self.errors("asking for its offsets"):
            isolation = level.READ_COMMITTED if committed else level.READ_UNCOMMITTED
            answers = self._admin.list_offsets(asked, isolation_level=isolation, request_timeout=self._settings.connect_s)
            for partition, future in answers.items():
                try:
                    found[partition.topic, partition.partition] = int(future.result().offset)
                except self.kafka.KafkaException as error:
                    if not self.is_unknown(error.args[0]):
                        raise
        return found

    def heads(self, topics: Mapping[str, TopicInfo]) -> dict[str, dict[str, int]]:
        """Where the next messages of topics will be: by topic and partition. Raises SourceAway, SourceUnfit."""
        found = self.offsets([(name, number) for name, info in topics.items() for number in info.partitions], newest=True)
        made: dict[str, dict[str, int]] = {}
        for (topic, number), offset in found.items():
            made.setdefault(topic, {})[str(number)] = max(0, offset)
        return made

    def delete_retentions_ms(self, topics: Iterable[str]) -> dict[str, int]:
        """How long compacted topics keep deletes, by name, as it was when they were asked for first. Raises SourceAway, SourceUnfit."""
        wanted = list(topics)
        asked = sorted({topic for topic in wanted if topic not in self._retentions_ms})
        found = self._topic_settings(asked) if asked else {}
        for topic in asked:
            settings = found.get(topic, {})
            is_compacted = "compact" in settings.get("cleanup.policy", "")
            self._retentions_ms[topic] = int(settings["delete.retention.ms"]) if is_compacted else None
        unknown = [topic for topic in asked if topic not in found]
        if unknown:
            said = ", ".join(unknown[:5])
            logger.warning("The user may not describe the settings of %s, so deletes that a compaction removes go unnoticed.", said)
        return {topic: kept for topic in wanted if (kept := self._retentions_ms.get(topic)) is not None}

    def _topic_settings(self, topics: Sequence[str]) -> dict[str, Mapping[str, str]]:
        """The settings of topics, by name. Those that the user may not ask for are left out."""
        resources = [self._admin_library.ConfigResource("topic", topic) for topic in topics]
        found: dict[str, Mapping[str, str]] = {}
        with self.errors("asking for the settings of its topics"):
            for resource, future in self._admin.describe_configs(resources, request_timeout=self._settings.connect_s).items():
                try:
                    found[resource.name] = {name: str(entry.value) for name, entry in future.result().items()}
                except self.kafka.KafkaException as error:
                    if not self.is_unknown(error.args[0]) and not self.is_code(error.args[0], *_REFUSED):
                        raise
        return found

    def commit_group(self, consumer: Any, offsets: Mapping[str, Mapping[str, int]]) -> None:
        """Commit offsets to the consumer group, for those who watch it. A failure counts for nothing."""
        made = [
            self.kafka.TopicPartition(topic, int(number), offset)
            for topic, partitions in offsets.items()
            for number, offset in partitions.items()
            if offset >= 0
        ]
        try:
            consumer.commit(offsets=made, asynchronous=True)
        except (self.kafka.KafkaException, RuntimeError) as error:
            _silent.warning("The offsets of the group were not committed: %s", error)

    def is_unknown(self, error: Any) -> bool:
        """Whether an error says that a topic or a partition is not there."""
        return error.code() in self._numbers(_UNKNOWN)

    def is_code(self, error: Any, *names: str) -> bool:
        """Whether an error has one of these names."""
        return error.code() in self._numbers(names)

    def is_truncation(self, error: Any) -> bool:
        """Whether an error says that a log was cut back behind an offset. Where no other offset is to be taken, its text alone says so."""
        return self.is_code(error, "_LOG_TRUNCATION") or (self.is_code(error, "_AUTO_OFFSET_RESET") and "log truncation" in error.str())

    def failure(self, error: Any, doing: str) -> SourceAway | SourceUnfit:
        """An error of the client as one of an ingest."""
        said = self._config.hide(str(error.str() if hasattr(error, "str") else error))
        if self._is_of_certificate(error):
            return SourceUnfit(
                f"The certificate of the brokers of {self._config.name!r} does not fit, while {doing}: {said}. Nothing was left out. Let "
                '"ssl.ca.location" in [source.options] be the file with the certificates that it is checked by, and `brokers` name the '
                "hosts that it is for. Then start the ingest again."
            )
        if self.is_code(error, *_REFUSED):
            return SourceUnfit(
                f"The brokers of {self._config.name!r} refused {doing}: {said}. Nothing was left out. Correct [source.options] or the "
                "rights of the user, which are to read and describe the topics. Then start the ingest again."
            )
        return SourceAway(f"The brokers of {self._config.name!r} were away while {doing}: {said}")

    @contextmanager
    def errors(self, doing: str) -> Iterator[None]:
        """A block whose errors of the client become SourceAway and SourceUnfit."""
        try:
            yield
        except self.kafka.KafkaException as error:
            found = error.args[0]
            # A timeout says nothing of why. What a broker said before it does.
            self._admin.poll(0)
            last = self._last_error
            is_vague = self.is_code(found, *_VAGUE)
            if last is not None and (self._is_refusal(last) or (is_vague and self.is_code(last, *_NETWORK))):
                found = last
            raise self.failure(found, doing) from None

    def check_error(self) -> None:
        """Raise what a broker refused in the background. Raises SourceUnfit."""
        last = self._last_error
        if last is not None and self._is_refusal(last):
            raise self.failure(last, "connecting")

    def _listed(self) -> Mapping[str, Any]:
        """All topics. A refusal, of which only the background hears, ends the wait soon."""
        timeout_s = self._settings.connect_s
        if timeout_s > 2 * REFUSAL_S:
            try:
                early: Mapping[str, Any] = self._admin.list_topics(timeout=REFUSAL_S).topics
            except self.kafka.KafkaException:
                self._admin.poll(0)
                self.check_error()
                timeout_s -= REFUSAL_S
            else:
                return early
        found: Mapping[str, Any] = self._admin.list_topics(timeout=timeout_s).topics
        return found

    def _numbers(self, names: Sequence[str]) -> set[int]:
        return {getattr(self._codes, name) for name in names}

    def _is_refusal(self, error: Any) -> bool:
        return self.is_code(error, *_REFUSED) or self._is_of_certificate(error)

    def _is_of_certificate(self, error: Any) -> bool:
        return self.is_code(error, "_SSL") and _UNFIT_CERTIFICATE in error.str()

    def _note_error(self, error: Any) -> None:
        # That no broker is there says less than why, and that a connection ended less than that it was refused.
        is_known = self._last_error is not None and self._is_refusal(self._last_error)
        if not self.is_code(error, "_ALL_BROKERS_DOWN") and not (is_known and self.is_code(error, "_TRANSPORT")):
            self._last_error = error

    def _make(self, make: Any) -> Any:
        try:
            return make()
        except self.kafka.KafkaException as error:
            said = self._config.hide(str(error.args[0]))
            raise InvalidConfig(f"A setting of [source] in {self._config.path} was refused: {said}. Correct it.") from None
