"""Intents: who is at work, or has planned work for somebody else. Advice only: what happened is for the log to say.

An operation under way is an object that its writer touches every `HEARTBEAT_S` seconds, so that others can tell a slow writer from a dead
one, politely. A plan is an object of its own that waits for an executor; executing it is a transaction that names the plan.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future

import msgspec

from fileio.base import Conflict, Create, GetResult, Unknown, Update, Version, Written, require_written
from fileio.env import Env, map_io
from fileio.errors import FileIOError, NotFound
from fileio.store import FileIO
from objcat.errors import CorruptTable
from objcat.timeline.entry import FORMAT_VERSION, Action, Intent, Txn, intent_key, new_txn, requested_key

logger = logging.getLogger("objcat.timeline")

HEARTBEAT_S = 10.0
CLOCK_WARNING_MS = 300_000
REQUESTED_SUFFIX = ".requested.json"

# As in `objcat.timeline.entry`: types must be known before threads meet them.
_INTENTS = msgspec.json.Decoder(Intent)


class Intents:
    """The intents of one log. Safe for many threads."""

    def __init__(self, fileio: FileIO) -> None:
        self._fileio = fileio
        self._hearts: dict[Txn, Callable[[], None]] = {}
        # Whoever drops this without a word, an interrupted cell of a notebook say, looks dead from then on.
        weakref.finalize(self, _stop_all, self._hearts)

    def announce(self, txn: Txn, action: Action, base: int, *, engine: str, plan_of: Txn | None = None) -> Future[int]:
        """Put the intent of `txn`, overlapped with the caller's work, and touch it from time to time until it is retracted or silenced.

        plan_of: the txn of the plan that it executes. The future holds how far the store's clock is ahead of the local one, in ms: 0 where
        it has none, or where they agree to the second (which is how finely most stores tell the time).
        """
        env = self._fileio.env
        heart = _Heart(self._fileio, msgspec.structs.replace(_begun(env, txn, action, base, engine), plan_of=plan_of))
        self._hearts[txn] = env.repeat(heart.beat, HEARTBEAT_S)
        return env.submit_io(heart.begin)

    def silence(self, txn: Txn) -> None:
        """Touch the intent no more, and leave it: its writer stops without knowing how it ends."""
        stop = self._hearts.pop(txn, None)
        if stop is not None:
            stop()

    def retract(self, txn: Txn, *, plan: Txn | None = None) -> Future[None]:
        """Delete the intent of a settled txn, and the plan that is settled with it, off the critical path.

        Failure is logged and harmless: whoever finds them finds them settled.
        """
        self.silence(txn)
        keys = [intent_key(txn)] if plan is None else [intent_key(txn), requested_key(plan)]

        def delete() -> None:
            remove_files(self._fileio, keys, why=txn)

        return self._fileio.env.submit_io(delete)


def _stop_all(hearts: dict[Txn, Callable[[], None]]) -> None:
    for txn in list(hearts):
        hearts.pop(txn)()


class _Heart:
    """The intent of one operation, as its writer keeps it. `begin` and `beat` may run in different threads."""

    def __init__(self, fileio: FileIO, intent: Intent) -> None:
        self._fileio = fileio
        self._intent = intent
        self._version: Version | None = None

    def begin(self) -> int:
        """Put the intent. Returns how far the store's clock is ahead, ms."""
        fileio, key = self._fileio, intent_key(self._intent.txn)
        match fileio.put(key, encode_intent(self._intent), Create()):
            case Written(version, store_time_ms):
                self._version = version
                if store_time_ms is None and fileio.capabilities.store_clock:
                    # The answer was lost and the intent found by reading back: the store noted when it landed. It may be gone by now,
                    # with a rollback: then the log will say so.
                    with contextlib.suppress(NotFound):
                        store_time_ms = fileio.head(key).modified_ms
                return 0 if store_time_ms is None else _skew_ms(store_time_ms, fileio.env.now_ms())
            case Conflict():
                raise CorruptTable(f"the intent of {self._intent.txn} exists already: two processes share one random state")
            case Unknown(cause):
                raise cause

    def beat(self) -> None:
        """Say that the writer lives. Whatever goes wrong is tried again at the next beat; an intent that somebody deleted stays deleted."""
        if self._version is None:
            return
        key = intent_key(self._intent.txn)
        self._intent = msgspec.structs.replace(self._intent, heartbeat_ms=self._fileio.env.now_ms(), beats=self._intent.beats + 1)
        try:
            outcome = self._fileio.put(key, encode_intent(self._intent), Update(self._version))
            self._version = outcome.version if isinstance(outcome, Written) else self._fileio.head(key).version
        except NotFound:
            self._version = None
        except Exception as error:  # noqa: BLE001 - a heartbeat is only advice
            logger.info("the intent of %s could not be touched: %s", self._intent.txn, error)


def request(fileio: FileIO, action: Action, base: int, *, engine: str, plan: Mapping[str, msgspec.Raw]) -> Txn:
    """Leave a plan for another process to execute. base: the slot of the view that it was made from. plan: meaningful to the executor.

    Returns its txn: what an executor names as `Candidate.plan`, and what a rollback fences. Raises NotWritten and storage errors.
    """
    txn = new_txn(fileio.env)
    intent = msgspec.structs.replace(_begun(fileio.env, txn, action, base, engine), plan=dict(plan))
    key = requested_key(txn)
    require_written(fileio.put(key, encode_intent(intent), Create()), key)
    return txn


def pending_plans(fileio: FileIO) -> list[Intent]:
    """The plans that wait for an executor, oldest first: one LIST, and one GET for each.

    A plan must be executed from the view as of its base, so that the executor reads every later slot: there it meets whoever executed the
    plan before (AlreadyDone), or rolled it back (Fenced). Some of the plans may be settled already.
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
    return msgspec.json.format(msgspec.json.encode(intent), indent=1)


def decode_intent(data: bytes, *, key: str) -> Intent:
    """The intent of an object. Raises CorruptTable for what is not one."""
    try:
        return _INTENTS.decode(data)
    except msgspec.DecodeError as error:
        raise CorruptTable(f"{key} is not an intent of objcat ({error}): it is only advice, so you may delete it") from error


def remove_files(fileio: FileIO, keys: Sequence[str], *, why: str) -> None:
    """Delete objects of a transaction that is settled, and needs them no more. Best effort: what stays is garbage."""
    try:
        failed = [result for result in fileio.delete(keys) if result.error is not None]
    except FileIOError as error:
        logger.warning("files of %s could not be deleted: %s", why, error)
        return
    for result in failed:
        logger.warning("%s of %s could not be deleted: %s", result.key, why, result.error)


def _skew_ms(store_ms: int, local_ms: int) -> int:
    """How far the store's clock, which may tell whole seconds only, is ahead of the local one; 0 when the two may be equal."""
    ahead_ms = store_ms - local_ms
    if -1000 <= ahead_ms <= 0:
        return 0
    if abs(ahead_ms) > CLOCK_WARNING_MS:
        logger.warning("the local clock is %d s off the store's; commit times follow the store's: mend the local clock", -ahead_ms // 1000)
    return ahead_ms
