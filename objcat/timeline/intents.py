"""Intents: who is at work, or has planned work for others. Advice only: the log says what happened.

An operation under way is an object that its writer touches every `HEARTBEAT_S` seconds. So others can tell a slow writer from a dead one,
politely. A write that ends soon has no intent; if it dies, its files show it. A plan is an object of its own that waits for an executor.
Executing it is a transaction that names the plan.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial

import msgspec

from fileio.contract import Create, GetResult, OutcomeUnknown, PreconditionFailed, Update, Version, Written, require_written
from fileio.env import Env, done_at_once, map_io
from fileio.errors import FileIOError, NotFound
from fileio.store import FileIO
from objcat.errors import CorruptTable, SharedTransaction
from objcat.timeline.entry import FORMAT_VERSION, Action, Txn, intent_key, is_txn, new_txn, requested_key
from objcat.timeline.json_objects import check_own_digest, decode_json, encode_object

logger = logging.getLogger("objcat.timeline")

HEARTBEAT_S = 10.0
ANNOUNCED_AFTER_S = 1.0
"""Seconds after which a running write puts its intent.

Small writes take a few tenths of a second, including lost slots and repeated requests. The value is small next to a heartbeat, and to the
age at which a writer is taken for dead.
"""
CLOCK_WARNING_MS = 300_000
REQUESTED_SUFFIX = ".requested.json"
ADVICE = "It is only advice, so you may delete it."


class Intent(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """An operation that is planned (REQUESTED) or under way (INFLIGHT). It is advice for others when its writer died.

    Args:
        requested_at_ms: By the writer's clock.
        heartbeat_ms: By the writer's clock. It only says that the writer lived then.
        plan: For the executor of the plan.
        plan_of: The txn of the requested plan that it executes.
    """

    format: int
    txn: Txn
    action: Action
    base: int
    host: str
    engine: str
    requested_at_ms: int = 0
    heartbeat_ms: int = 0
    beats: int = 0
    plan_of: Txn | None = None
    plan: dict[str, msgspec.Raw] = {}


# As in `objcat.timeline.entry`: types must be known before threads meet them.
_INTENTS = msgspec.json.Decoder(Intent)


class Intents:
    """The intents of one log. Safe for many threads."""

    def __init__(self, fileio: FileIO) -> None:
        self._fileio = fileio
        self._hearts: dict[Txn, tuple[_Heart, Callable[[], None]]] = {}
        # If the caller drops this object, as an interrupted notebook cell does, its writers look dead from then on.
        weakref.finalize(self, _stop_all, self._hearts)

    def announce(
        self, txn: Txn, action: Action, base: int, *, engine: str, first: Callable[[], None], plan_of: Txn | None = None
    ) -> Future[int]:
        """Put the intent of `txn` while the caller works. Touch it until it is deleted or its heartbeat is stopped.

        Args:
            first: Called before the put, also while the caller works. If it raises, the future raises the same, and there is no intent.
            plan_of: The txn of the plan that it executes.

        Returns:
            A future of how far the store's clock is ahead of the local one, in ms. It is 0 without a store clock, or when both agree to the
            second (most stores tell whole seconds).
        """
        heart = self._begin(txn, action, base, engine, plan_of, first_s=HEARTBEAT_S)
        heart.was_sent = True
        return self._fileio.env.submit_io(partial(heart.announce, first))

    def announce_if_slow(self, txn: Txn, action: Action, base: int, *, engine: str) -> Callable[[], int]:
        """As `announce`, but put the intent only if the operation runs for `ANNOUNCED_AFTER_S`. A shorter one sends nothing.

        Returns:
            A function that tells how far the store's clock is ahead, in ms. It sends no request if an answer since the start has told it.
            Else it puts the intent to learn it, and raises what that raises.
        """
        return self._begin(txn, action, base, engine, None, first_s=ANNOUNCED_AFTER_S).skew_ms

    def stop_heartbeat(self, txn: Txn) -> None:
        """Stop touching the intent and leave it. Its writer stops without knowing the outcome."""
        self._stop(txn)

    def leave(self, txn: Txn) -> None:
        """Stop touching the intent, and make sure that there is one, off the critical path.

        Nobody knows whether `txn` is committed, and it may have no files that show it. Failure is logged.
        """
        heart = self._stop(txn)
        if heart is not None and not heart.was_sent:
            self._fileio.env.submit_io(heart.testify)

    def delete_intent(self, txn: Txn, *, plan: Txn | None = None) -> Future[None]:
        """Delete the intent of a settled txn, and the plan that is settled with it, off the critical path.

        An object that is not there costs nothing. A put of the intent that is under way ends first. Failure is logged and harmless: the
        next reader finds them settled.
        """
        heart = self._stop(txn)
        keys = [] if heart is not None and not heart.was_sent else [intent_key(txn)]
        if plan is not None:
            keys.append(requested_key(plan))

        def delete() -> None:
            if heart is not None:
                heart.wait()
            remove_files(self._fileio, keys, why=txn)

        return self._fileio.env.submit_io(delete) if keys else done_at_once(lambda: None)

    def _begin(self, txn: Txn, action: Action, base: int, engine: str, plan_of: Txn | None, *, first_s: float) -> _Heart:
        env = self._fileio.env
        heart = _Heart(self._fileio, msgspec.structs.replace(_begun(env, txn, action, base, engine), plan_of=plan_of))
        self._hearts[txn] = heart, env.repeat(heart.beat, HEARTBEAT_S, first_s=first_s)
        return heart

    def _stop(self, txn: Txn) -> _Heart | None:
        """The heart of a txn, which begins no request any more. None when it was stopped before."""
        heart, stop = self._hearts.pop(txn, (None, _do_nothing))
        stop()
        if heart is not None:
            heart.stop()
        return heart


def _do_nothing() -> None:
    pass


def _stop_all(hearts: dict[Txn, tuple[_Heart, Callable[[], None]]]) -> None:
    for txn in list(hearts):
        hearts.pop(txn)[1]()


class _Heart:
    """The intent of one operation, in its writer. Its methods may run in different threads.

    was_sent: whether the intent may be in the store, now or when the running request ends. It is final after `stop`.
    """

    def __init__(self, fileio: FileIO, intent: Intent) -> None:
        self._fileio = fileio
        self._intent = intent
        self._began_s = fileio.env.monotonic_s()
        self._version: Version | None = None
        self._skew_ms: int | None = None
        self._may_be_there = False
        self._is_stopped = False
        self.was_sent = False
        # Two locks, so that `stop` waits for no store: one for the two flags, and one for the running request.
        self._flags = threading.Lock()
        self._request = threading.Lock()

    def announce(self, first: Callable[[], None] | None = None) -> int:
        """Put the intent, unless it was put. Returns how far the store's clock is ahead, in ms. An error of `first` ends this heart."""
        with self._request:
            if first is not None:
                try:
                    first()
                except BaseException:
                    self.was_sent = False
                    self.stop()
                    raise
            return self._announce()

    def skew_ms(self) -> int:
        """How far the store's clock is ahead, in ms: by answers since the operation began, else by the answer to the intent."""
        if not self._fileio.capabilities.store_clock:
            return 0
        reading = self._fileio.clock(since_s=self._began_s)
        return self.announce() if reading is None else _skew_ms(reading.store_ms, reading.local_ms)

    def beat(self) -> None:
        """Show that the writer lives. A failure is tried again at the next beat. A deleted intent stays deleted."""
        if not self._request.acquire(blocking=False):
            return  # The running request shows it too.
        try:
            if not self._may_send():
                return
            if self._skew_ms is None:
                self._announce()
            else:
                self._touch()
        except Exception as error:  # noqa: BLE001 - a heartbeat is only advice
            logger.info("The intent of %s could not be touched: %s", self._intent.txn, error)
        finally:
            self._request.release()

    def testify(self) -> None:
        """Put the intent as the last sign of its writer."""
        try:
            self.announce()
        except Exception as error:  # noqa: BLE001 - an intent is only advice
            logger.warning("%s has an unknown outcome, and its intent could not be put: %s", self._intent.txn, error)

    def stop(self) -> None:
        """Stop: `beat` begins no request any more."""
        with self._flags:
            self._is_stopped = True

    def wait(self) -> None:
        """Wait until no request is running."""
        with self._request:
            return

    def _may_send(self) -> bool:
        with self._flags:
            self.was_sent = self.was_sent or not self._is_stopped
            return not self._is_stopped

    def _announce(self) -> int:
        if self._skew_ms is not None:
            return self._skew_ms
        fileio, key = self._fileio, intent_key(self._intent.txn)
        self.was_sent = True
        try:
            outcome = fileio.put(key, encode_intent(self._intent), Create())
        except FileIOError:
            self.was_sent = self._may_be_there
            raise
        store_ms: int | None = None
        match outcome:
            case Written(version, store_ms):
                self._version, self._may_be_there = version, True
            case OutcomeUnknown(cause):
                self._may_be_there = True
                raise cause
            case PreconditionFailed() if not self._may_be_there:
                self.was_sent = False
                raise SharedTransaction(
                    f"The intent of {self._intent.txn} exists already: another operation has the same id. Nothing was written. Write again."
                )
        if store_ms is None and (fileio.capabilities.store_clock or self._version is None):
            # The answer was lost, and the intent was found by reading back. The store noted its time. If it is gone, it was rolled back,
            # and the log will say so.
            with contextlib.suppress(NotFound):
                found = fileio.head(key)
                self._version, store_ms = found.version, found.modified_ms if fileio.capabilities.store_clock else None
        self._skew_ms = 0 if store_ms is None else _skew_ms(store_ms, fileio.env.now_ms())
        return self._skew_ms

    def _touch(self) -> None:
        if self._version is None:
            return
        key = intent_key(self._intent.txn)
        self._intent = msgspec.structs.replace(self._intent, heartbeat_ms=self._fileio.env.now_ms(), beats=self._intent.beats + 1)
        try:
            outcome = self._fileio.put(key, encode_intent(self._intent), Update(self._version))
            self._version = outcome.version if isinstance(outcome, Written) else self._fileio.head(key).version
        except NotFound:
            self._version = None


def request(fileio: FileIO, action: Action, base: int, *, engine: str, plan: Mapping[str, msgspec.Raw]) -> Txn:
    """Leave a plan for another process to execute.

    Args:
        base: The slot of the view that it was made from.
        plan: For the executor.

    Returns:
        Its txn. An executor names it as `CommitAttempt.plan`, and a rollback fences it.

    Raises:
        NotWritten, FileIOError: The plan was not stored.
    """
    txn = new_txn(fileio.env)
    intent = msgspec.structs.replace(_begun(fileio.env, txn, action, base, engine), plan=dict(plan))
    key = requested_key(txn)
    require_written(fileio.put(key, encode_intent(intent), Create()), key)
    return txn


def pending_plans(fileio: FileIO) -> list[Intent]:
    """The plans that wait for an executor, oldest first. One LIST, and one GET for each.

    Execute a plan from the view at its base, so that you read every later slot. There you find its earlier execution (AlreadyDone) or its
    rollback (WriterFenced). Some of the plans may be settled already.
    """
    keys = [key for key in fileio.list_keys("intents/") if key.endswith(REQUESTED_SUFFIX)]

    def read(key: str) -> Intent | None:
        try:
            result = fileio.get(key)
        except NotFound:
            return None
        assert isinstance(result, GetResult)
        return decode_intent(result.data, key=key)

    return [intent for intent in map_io(fileio.env, read, sorted(keys)) if intent is not None]


def _begun(env: Env, txn: Txn, action: Action, base: int, engine: str) -> Intent:
    """The intent of an operation that begins here and now."""
    now_ms = env.now_ms()
    return Intent(
        format=FORMAT_VERSION,
        txn=txn,
        action=action,
        base=base,
        host=socket.gethostname(),
        engine=engine,
        requested_at_ms=now_ms,
        heartbeat_ms=now_ms,
    )


def encode_intent(intent: Intent) -> bytes:
    """The bytes of an intent object."""
    return encode_object(intent)


def decode_intent(data: bytes, *, key: str) -> Intent:
    """The intent in an object. Raises CorruptTable."""
    intent = decode_json(data, _INTENTS, where=key, what="an intent of objcat", remedy=ADVICE)
    check_own_digest(data, key=key)
    if not is_txn(intent.txn) or not key.startswith(f"intents/{intent.txn}.") or intent.base < -1 or not intent.format:
        raise CorruptTable(
            f"{key} names the transaction {intent.txn!r}, planned at slot {intent.base}. No intent of that name can say so. {ADVICE}"
        )
    return intent


def remove_files(fileio: FileIO, keys: Sequence[str], *, why: str) -> int:
    """Delete objects that a settled transaction does not need. Best effort: what stays is garbage.

    Returns:
        For how many keys it is not known that they are gone.
    """
    try:
        failed = [result for result in fileio.delete(keys) if result.error is not None]
    except FileIOError as error:
        logger.warning("Files of %s could not be deleted: %s", why, error)
        return len(keys)
    for result in failed:
        logger.warning("%s of %s could not be deleted: %s", result.key, why, result.error)
    return len(failed)


def _skew_ms(store_ms: int, local_ms: int) -> int:
    """How far the store's clock is ahead of the local one. 0 when they may be equal: the store may tell whole seconds only."""
    ahead_ms = store_ms - local_ms
    if -1000 <= ahead_ms <= 0:
        return 0
    if abs(ahead_ms) > CLOCK_WARNING_MS:
        logger.warning(
            "The local clock is %d s off the store's. Commit times follow the store's clock. Correct the local clock.", -ahead_ms // 1000
        )
    return ahead_ms
