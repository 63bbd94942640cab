"""Settling: what a write's outcome really is when answers get lost. This is the only place that decides it.

A conditional write whose response was lost is asked again with the same bytes and the same write id. When the store then says "condition
failed", the object is read back, and the write id and the base that every write leaves in the object's metadata tell whose it is:

- our write id: the first attempt had landed. `Written`.
- a foreign object that replaced *the very version that we meant to replace*: ours never landed. `PreconditionFailed`.
- any other foreign object: if no attempt of ours was ambiguous, `PreconditionFailed`; else ours may have landed and been replaced since,
  and only `OutcomeUnknown` is true.

Two things are taken for granted. An object that is created or swapped under a condition is not deleted while its writers are at work: a
deletion removes the proof. And nothing between us and the store repeats a request unseen *while* another client replaces the object: if
that happens, the failed condition of the repetition looks like a competitor's, and the verdict is `PreconditionFailed` although ours was
there for a moment."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from fileio.contract import (
    WRITE_BASE,
    WRITE_ID,
    Create,
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
    """Bounds of every retry in `fileio`. Pauses grow by doubling with full jitter.

    attempts_max: requests sent for one call, the first included. deadline_s: no new attempt begins later than this after the first.
    """

    attempts_max: int = 8
    deadline_s: float = 60.0
    backoff_ms_first: int = 50
    backoff_ms_max: int = 5_000

    def __post_init__(self) -> None:
        """Raises InvalidConfig when a bound cannot be."""
        for name, least in (("attempts_max", 1), ("deadline_s", 0), ("backoff_ms_first", 0), ("backoff_ms_max", 0)):
            if getattr(self, name) < least:
                raise InvalidConfig(f"the retry setting {name!r} must be at least {least}, but is {getattr(self, name)!r}")


# ---- what a read-back finds --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class WriteIsOurs:
    """The object carries our write id."""

    version: Version


@dataclass(frozen=True, slots=True)
class Foreign:
    """Somebody else's object. came_instead: it is proved that it took the place that our write wanted, so ours never landed."""

    version: Version | None
    came_instead: bool


@dataclass(frozen=True, slots=True)
class Absent:
    """There is no object."""


Evidence: TypeAlias = WriteIsOurs | Foreign | Absent


class Contradicted(Throttled):
    """The store said that a condition failed, and then that no object is there."""


def write_metadata(write_id: str, mode: PutMode) -> dict[str, str]:
    """The metadata that every write leaves: who wrote, and what it replaced."""
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
    """What an object that is there says about our write of `write_id` under `mode`."""
    written_by = meta.metadata.get(WRITE_ID)
    if written_by == write_id:
        return WriteIsOurs(meta.version)
    base = meta.metadata.get(WRITE_BASE)
    replaced = write_metadata(write_id, mode)[WRITE_BASE]
    return Foreign(meta.version, came_instead=base == replaced and not isinstance(mode, Overwrite))


# ---- the two loops -----------------------------------------------------------------------------------------------


def attempts(policy: RetryPolicy, env: Env, on_retry: Callable[[], None]) -> Iterator[int]:
    """Yields 1, 2, ... with a jittered pause before every number but the first, within the policy's bounds."""
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
    """Repeat a call that changes nothing (or is idempotent) while it answers Throttled or Unavailable. Raises the last error."""
    failure: FileIOError | None = None
    for _ in attempts(policy, env, on_retry):
        try:
            return call()
        except (Throttled, Unavailable) as error:
            failure = error
    assert failure is not None
    raise failure


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
    """Repeat one write until its outcome is certain, within bounds.

    attempt: sends the same request with the same write id each time. read_back: one look at the object, after retries of its own. mode: an
    `Overwrite` has no condition that could fail, so for it the answer `PreconditionFailed` means that the upload is gone.
    doubt: why an earlier settling of the same write ended as Unknown, so that its attempts may have landed.
    Returns Written, Conflict (provably not ours) or Unknown. Raises only when it is certain that no attempt had an effect.
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
                contradiction = Contradicted("the store refuses to write an object that it also says is absent: ask again later")
                if isinstance(mode, Create):
                    # What stood in the way may have been our own first copy, which the read-back did not see yet.
                    ambiguous = ambiguous or contradiction
                else:
                    refused = contradiction
    if ambiguous is not None:
        return _last_look(read_back, ambiguous)
    assert refused is not None
    raise refused


def _judge(read_back: Callable[[], Evidence], *, mode: PutMode, ambiguous: Exception | None) -> PutOutcome | None:
    """The outcome after a failed condition; None: the object is not there, and the write may be sent again.

    Without a read-back it is Unknown, also when no attempt was ambiguous: it is the read-back that tells our own object, landed by a
    request that something on the way repeated, from a competitor's.
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
                ambiguous or UploadLost("the store no longer knows the upload, and another object is there: write it again")
            )
        case Foreign(version, came_instead):
            return PreconditionFailed(version) if came_instead or ambiguous is None else OutcomeUnknown(ambiguous)
        case Absent():
            if isinstance(mode, (Create, Overwrite)):
                return None
            return PreconditionFailed(None) if ambiguous is None else OutcomeUnknown(ambiguous)


def _last_look(read_back: Callable[[], Evidence], cause: Exception) -> PutOutcome:
    """After the last ambiguous attempt: our own object is certain, and so is one that came instead; everything else may still change."""
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
