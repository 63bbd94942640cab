"""Retries of requests to every store, and the outcome of a write whose response was lost. No other module decides either.

`retry` repeats a request within the limits of a `RetryPolicy`; the SDKs' own retries are off. `FileIO` calls both.

A conditional write whose response was lost is sent again with the same bytes and the same write id. If the store then says "condition
failed", the object is read back. The write id and the base that every write stores in the metadata tell whose object it is:

- It has our write id: the first attempt took effect. `Written`.
- It is foreign and replaced *the very version that we meant to replace*: ours never took effect. `PreconditionFailed`.
- It is foreign otherwise: if no attempt of ours was ambiguous, `PreconditionFailed`. Else ours may have been written and replaced since,
  and the answer is `OutcomeUnknown`.

Two assumptions. An object that is created or swapped under a condition is not deleted while its writers work: a deletion removes the
proof. And nothing between us and the store repeats a request *while* another client replaces the object. Otherwise the failed condition
of the repetition looks like a competitor's, and the outcome is `PreconditionFailed` although ours existed for a moment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from fileio.contract import (
    WRITE_BASE,
    WRITE_ID,
    Create,
    DeleteResult,
    ObjectMeta,
    OutcomeUnknown,
    Overwrite,
    PreconditionFailed,
    PutMode,
    PutOutcome,
    Update,
    Version,
    Written,
)
from fileio.env import Env
from fileio.errors import FileIOError, InvalidConfig, Throttled, Unavailable, UploadLost

T = TypeVar("T")

BASE_ABSENT = "absent"
BASE_ANY = "any"


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """Limits of every retry in `fileio`. Pauses double each time, with full jitter.

    Args:
        attempts_max: Requests sent for one call, the first included.
        deadline_s: No attempt begins later than this after the first, in seconds.
        backoff_ms_first: The longest first pause, in ms.
        backoff_ms_max: The longest pause, in ms.

    Raises:
        InvalidConfig: A limit is too small.
    """

    attempts_max: int = 8
    deadline_s: float = 60.0
    backoff_ms_first: int = 50
    backoff_ms_max: int = 5_000

    def __post_init__(self) -> None:
        """Check the limits."""
        for name, least in (("attempts_max", 1), ("deadline_s", 0), ("backoff_ms_first", 0), ("backoff_ms_max", 0)):
            if getattr(self, name) < least:
                raise InvalidConfig(f"The retry setting {name!r} must be at least {least}, but is {getattr(self, name)!r}.")


# ---- evidence -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class WriteIsOurs:
    """The object has our write id."""

    version: Version


@dataclass(frozen=True, slots=True)
class Foreign:
    """The object of another writer. `came_instead`: it provably took the place that our write wanted, so ours never took effect."""

    version: Version | None
    came_instead: bool


@dataclass(frozen=True, slots=True)
class Absent:
    """There is no object."""


Evidence: TypeAlias = WriteIsOurs | Foreign | Absent


class Contradicted(Throttled):
    """The store said that a condition failed, and then that there is no object."""


def write_metadata(write_id: str, mode: PutMode) -> dict[str, str]:
    """The metadata that every write stores: its write id, and what it replaced."""
    base: str
    match mode:
        case Create():
            base = BASE_ABSENT
        case Update(version):
            base = version
        case Overwrite():
            base = BASE_ANY
    return {WRITE_ID: write_id, WRITE_BASE: base}


def evidence_of(meta: ObjectMeta, write_id: str, mode: PutMode) -> Evidence:
    """What an existing object says about our write of `write_id` under `mode`."""
    written_by = meta.metadata.get(WRITE_ID)
    if written_by == write_id:
        return WriteIsOurs(meta.version)
    base = meta.metadata.get(WRITE_BASE)
    replaced = write_metadata(write_id, mode)[WRITE_BASE]
    return Foreign(meta.version, came_instead=base == replaced and not isinstance(mode, Overwrite))


# ---- retries ----------------------------------------------------------------------------------------------------


def attempts(policy: RetryPolicy, env: Env, on_retry: Callable[[], None]) -> Iterator[int]:
    """Yields 1, 2, ... within the limits of the policy, with a jittered pause before each number but the first."""
    began_s = env.monotonic_s()
    for number in range(1, policy.attempts_max + 1):
        if number > 1:
            pause_ms = min(policy.backoff_ms_max, policy.backoff_ms_first * 2 ** (number - 2)) * env.random()
            if env.monotonic_s() - began_s + pause_ms / 1000 > policy.deadline_s:
                return
            env.sleep(pause_ms / 1000)
            on_retry()
        yield number


def retry(call: Callable[[], T], *, policy: RetryPolicy, env: Env, on_retry: Callable[[], None]) -> T:
    """Repeat an idempotent call while it raises Throttled or Unavailable. Raises the last error."""
    failure: FileIOError | None = None
    for _ in attempts(policy, env, on_retry):
        try:
            return call()
        except (Throttled, Unavailable) as error:
            failure = error
    assert failure is not None
    raise failure


def delete_settled(
    delete_batch: Callable[[Sequence[str]], Sequence[DeleteResult]], keys: Sequence[str], retried: Callable[[Callable[[], None]], None]
) -> list[DeleteResult]:
    """Delete one batch. Keys that were throttled or unavailable are sent again by `retried`. Returns one result for each key, in order."""
    done: dict[str, DeleteResult] = {}

    def attempt() -> None:
        left = [key for key in keys if key not in done or done[key].error is not None]
        for result in delete_batch(left):
            done[result.key] = result
        for result in done.values():
            if isinstance(result.error, (Throttled, Unavailable)):
                raise result.error

    try:
        retried(attempt)
    except FileIOError as error:
        for key in keys:
            done.setdefault(key, DeleteResult(key, error))
    return [done[key] for key in keys]


def resolve_write_outcome(
    attempt: Callable[[], PutOutcome],
    read_back: Callable[[], Evidence],
    *,
    mode: PutMode,
    policy: RetryPolicy,
    env: Env,
    on_retry: Callable[[], None],
    doubt: Exception | None = None,
) -> PutOutcome:
    """Repeat one write until its outcome is certain, within the limits of the policy.

    Args:
        attempt: Sends the same request with the same write id each time.
        read_back: Looks at the object once, with its own retries.
        mode: The condition. An `Overwrite` has none that could fail: there, `PreconditionFailed` means that the upload is gone.
        policy: Limits of retries.
        env: Clock and randomness.
        on_retry: Called before each attempt but the first.
        doubt: Why an earlier call for the same write ended as OutcomeUnknown: its attempts may have taken effect.

    Returns:
        Written, PreconditionFailed (provably not ours) or OutcomeUnknown.

    Raises:
        FileIOError: No attempt had an effect. This is certain.
    """
    ambiguous = doubt
    refused: FileIOError | None = None
    for _ in attempts(policy, env, on_retry):
        try:
            outcome = attempt()
        except Throttled as error:
            refused = error
            continue
        except FileIOError as error:
            if ambiguous is None:
                raise
            return _last_look(read_back, error)
        match outcome:
            case Written():
                return outcome
            case OutcomeUnknown(cause):
                ambiguous = cause
            case PreconditionFailed():
                verdict = _judge(read_back, mode=mode, ambiguous=ambiguous)
                if verdict is not None:
                    return verdict
                contradiction = Contradicted("The store refuses to write an object that it also calls absent. Try again later.")
                if isinstance(mode, Create):
                    # The object in the way may be our own first copy, which the read-back did not see yet.
                    ambiguous = ambiguous or contradiction
                else:
                    refused = contradiction
    if ambiguous is not None:
        return _last_look(read_back, ambiguous)
    assert refused is not None
    raise refused


def _judge(read_back: Callable[[], Evidence], *, mode: PutMode, ambiguous: Exception | None) -> PutOutcome | None:
    """The outcome after a failed condition; None when there is no object, and the write may be sent again.

    If the object cannot be read back, the outcome is OutcomeUnknown, even if no attempt was ambiguous. Something on the way may have
    repeated our request. Only the read-back tells our own object from a competitor's.
    """
    try:
        found = read_back()
    except FileIOError as error:
        return OutcomeUnknown(error)
    match found:
        case WriteIsOurs(version):
            return Written(version)
        case Foreign() if isinstance(mode, Overwrite):
            return OutcomeUnknown(
                ambiguous or UploadLost("The store no longer knows the upload, and another object is there. Write it again.")
            )
        case Foreign(version, came_instead):
            return PreconditionFailed(version) if came_instead or ambiguous is None else OutcomeUnknown(ambiguous)
        case Absent():
            if isinstance(mode, (Create, Overwrite)):
                return None
            return PreconditionFailed(None) if ambiguous is None else OutcomeUnknown(ambiguous)


def _last_look(read_back: Callable[[], Evidence], cause: Exception) -> PutOutcome:
    """After the last ambiguous attempt: our object is certain, and so is one that came instead. All else may still change."""
    try:
        found = read_back()
    except FileIOError:
        return OutcomeUnknown(cause)
    match found:
        case WriteIsOurs(version):
            return Written(version)
        case Foreign(version, came_instead=True):
            return PreconditionFailed(version)
        case _:
            return OutcomeUnknown(cause)


__all__ = [
    "Absent",
    "Contradicted",
    "Evidence",
    "Foreign",
    "RetryPolicy",
    "WriteIsOurs",
    "attempts",
    "evidence_of",
    "resolve_write_outcome",
    "retry",
    "write_metadata",
]
