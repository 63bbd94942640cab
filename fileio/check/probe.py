"""What a store honours of the contract, and what it silently ignores: a check of a user's own bucket.

`probe` checks everything and reports it; `objcat store-check` prints the report. `check_commit_store` is the quick form that runs before
a table is created, and refuses a store that ignores conditions. Both write only below a fresh prefix `.objcat-check-<id>/`, and remove it
afterwards, also after errors.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from fileio.check.report import KEPT, Finding, ProbeReport, ProbeRow, Verdict
from fileio.contract import (
    WRITE_ID,
    Create,
    GetResult,
    NotModified,
    OutcomeUnknown,
    Overwrite,
    PreconditionFailed,
    PutMode,
    PutOutcome,
    Range,
    Suffix,
    Update,
    Version,
    Written,
    require_written,
)
from fileio.env import SystemEnv
from fileio.errors import BucketNotFound, FileIOError, NotFound, StoreUnfit, Unsupported
from fileio.store import FileIO

SCRATCH_PREFIX = ".objcat-check-"
_ASKED_BEFORE = "first"
"""A key below the prefix. It is read before it exists, which a cache in between may remember."""
RACE_CLIENTS = 16
RACE_ROUNDS = 4
CLOCK_SKEW_MS_MAX = 5 * 60 * 1000


@dataclass(slots=True)
class Scratch:
    """The keys of one check. All are removed at the end."""

    fileio: FileIO
    prefix: str
    keys: set[str] = field(default_factory=set)

    def key(self, name: str) -> str:
        """The key of this name below the scratch prefix."""
        key = self.prefix + name
        self.keys.add(key)
        return key

    def create(self, key: str, body: bytes) -> Version:
        """Create an object and return its version."""
        return require_written(self.fileio.put(key, body, Create()), repr(key)).version

    def complete(self, key: str, body: bytes, mode: PutMode) -> PutOutcome:
        """Upload an object in one part and return the outcome."""
        upload = self.fileio.start_upload(key, mode)
        outcome: PutOutcome | None = None
        try:
            upload.put_part(1, body)
            outcome = upload.complete()
            return outcome
        finally:
            if not isinstance(outcome, Written):
                with suppress(FileIOError):
                    upload.abort()


def probe(fileio: FileIO, *, on_check: Callable[[ProbeRow], None] = lambda _: None) -> ProbeReport:
    """Check everything that tables, streams and readers rely on, in several hundred small requests.

    Args:
        fileio: The store.
        on_check: Called with every row as soon as it is known.

    Returns:
        The report.

    Raises:
        FileIOError: Not even one object can be written and read back: wrong credentials, a missing bucket, no answer.
    """
    rows: list[ProbeRow] = []
    with _scratch(fileio) as scratch:
        for number, (check, meaning, required, act) in enumerate(_CHECKS):
            try:
                verdict, detail = act(scratch)
            except Unsupported:
                verdict, detail = Verdict.UNSUPPORTED, "The store does not claim to do this."
            except FileIOError as error:
                if number == 0:
                    raise
                verdict, detail = Verdict.FAILED, str(error)
            rows.append(ProbeRow(check, meaning, required, verdict, detail))
            on_check(rows[-1])
    broken = [row for row in rows if row.required and row.verdict is not Verdict.KEPT]
    warnings = [row for row in rows if not row.required and row.verdict in (Verdict.IGNORED, Verdict.FAILED, Verdict.REFUSED)]
    return ProbeReport(fileio.url, rows, not broken, _why(fileio.url, broken, warnings))


def _why(url: str, broken: Sequence[ProbeRow], warnings: Sequence[ProbeRow]) -> str:
    if broken:
        return f"{url} is not fit for commits: " + ", ".join(f"{row.check} is {row.verdict}" for row in broken) + "."
    also = " Note: " + ", ".join(f"{row.check} is {row.verdict}" for row in warnings) + "." if warnings else ""
    return f"{url} is fit for commits. It honours conditional writes, also by {RACE_CLIENTS} clients at once.{also}"


def check_commit_store(fileio: FileIO) -> None:
    """Refuse a store on which concurrent commits would overwrite each other or stay unseen, in about fifteen small requests.

    Args:
        fileio: The store.

    Raises:
        StoreUnfit: The store ignores a condition. The message names it.
        FileIOError: The store cannot be asked.
    """
    if not fileio.capabilities.conditional_put:
        raise StoreUnfit(f"{fileio.url} has no conditional writes, so concurrent commits would be lost. Use another store.")
    ignored: list[str] = []
    with _scratch(fileio) as scratch:
        first, second = scratch.key(_ASKED_BEFORE), scratch.key("second")
        version = scratch.create(first, b"first")
        _check_read_back(fileio, first, b"first", version)
        stale = scratch.create(second, b"second")
        if _refused(fileio.put(first, b"again", Create()))[0] is not Verdict.KEPT:
            ignored.append("'create only when absent'")
        if _refused(fileio.put(first, b"stale", Update(stale)))[0] is not Verdict.KEPT:
            ignored.append("'replace only when unchanged'")
        if fileio.capabilities.conditional_complete and _refused(scratch.complete(second, b"again", Create()))[0] is not Verdict.KEPT:
            ignored.append("'create only when absent' on the completion of an upload")
    if ignored:
        promises = " and ".join(ignored)
        raise StoreUnfit(
            f"{fileio.url} ignores {promises}, so concurrent commits would be lost. Use another store, and run `objcat store-check`."
        )


def _check_read_back(fileio: FileIO, key: str, body: bytes, version: Version) -> None:
    """Raises StoreUnfit unless the object reads as it was written. It was read before it existed, which a cache may remember."""
    try:
        found = fileio.get(key)
    except NotFound:
        seen = "that there is no such object, as before. A cache in between repeats old answers"
    else:
        assert isinstance(found, GetResult)
        if (found.data, found.meta.version) != (body, version):
            seen = f"{len(found.data)} bytes of version {found.meta.version} instead of {len(body)} of {version}"
        elif WRITE_ID not in found.meta.metadata:
            seen = "no metadata, so that a lost response cannot be settled"
        else:
            return
    raise StoreUnfit(
        f"{fileio.url} was asked for an object just written, and answered {seen}. Use another store, and run `objcat store-check`."
    )


@contextmanager
def _scratch(fileio: FileIO) -> Iterator[Scratch]:
    scratch = Scratch(fileio, f"{SCRATCH_PREFIX}{fileio.env.new_id()}/")
    # Read first: an error that prevents everything is then reported as such, and not as a write of unknown outcome.
    try:
        fileio.get(scratch.key(_ASKED_BEFORE))
    except BucketNotFound:
        raise
    except NotFound:
        pass
    try:
        yield scratch
    finally:
        with suppress(FileIOError):
            scratch.keys.update(fileio.list_keys(scratch.prefix))
        with suppress(FileIOError):
            fileio.delete(sorted(scratch.keys))


# ---- findings -------------------------------------------------------------------------------------------------


def _refused(outcome: PutOutcome) -> Finding:
    """The finding for a write that must be refused."""
    match outcome:
        case PreconditionFailed():
            return KEPT
        case Written():
            return Verdict.IGNORED, "The write was accepted although its condition did not hold."
        case OutcomeUnknown(cause):
            return Verdict.FAILED, f"The outcome is not known: {cause}"


def _accepted(outcome: PutOutcome) -> Finding:
    """The finding for a write that must be accepted."""
    match outcome:
        case Written():
            return KEPT
        case PreconditionFailed():
            return Verdict.REFUSED, "The write was refused although its condition held."
        case OutcomeUnknown(cause):
            return Verdict.FAILED, f"The outcome is not known: {cause}"


def _equal(found: object, expected: object) -> Finding:
    return KEPT if found == expected else (Verdict.FAILED, f"Expected {_short(expected)}, but found {_short(found)}.")


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


# ---- objects -----------------------------------------------------------------------------------------------------


def _round_trip(scratch: Scratch) -> Finding:
    key = scratch.key("round-trip")
    scratch.create(key, b"some bytes")
    return _equal(scratch.fileio.read(key), b"some bytes")


def _metadata(scratch: Scratch) -> Finding:
    key = scratch.key("metadata")
    require_written(scratch.fileio.put(key, b"x", Create(), metadata={"probe": "value 1"}), repr(key))
    return _equal(scratch.fileio.head(key).metadata.get("probe"), "value 1")


def _read_after_write(scratch: Scratch) -> Finding:
    key = scratch.key("read-after-write")
    # A cache in between may remember that the object is absent.
    with suppress(NotFound):
        scratch.fileio.get(key)
    for number in range(5):
        body = f"body {number}".encode()
        version = require_written(scratch.fileio.put(key, body), repr(key)).version
        result = scratch.fileio.get(key)
        if not isinstance(result, GetResult) or (result.data, result.meta.version) != (body, version):
            return Verdict.FAILED, "A read returned an older object than the one just written."
    return KEPT


def _list_after_write(scratch: Scratch) -> Finding:
    for number in range(3):
        key = scratch.key(f"listed/{number}")
        scratch.create(key, b"")
        if key not in list(scratch.fileio.list_keys(scratch.prefix + "listed/")):
            return Verdict.FAILED, "A listing did not show the object just written."
    return KEPT


def _ranges(scratch: Scratch) -> Finding:
    key = scratch.key("ranges")
    scratch.create(key, b"0123456789")
    parts = [scratch.fileio.read(key, byte_range=part) for part in (Range(2, 5), Range(7), Range(8, 99), Suffix(3), Range(50, 60))]
    return _equal(parts, [b"234", b"789", b"89", b"789", b""])


def _if_none_match(scratch: Scratch) -> Finding:
    key = scratch.key("if-none-match")
    version = scratch.create(key, b"x")
    unchanged = scratch.fileio.get(key, if_none_match=version)
    return KEPT if isinstance(unchanged, NotModified) else (Verdict.IGNORED, "The object was sent although it had not changed.")


def _listing(scratch: Scratch) -> Finding:
    keys = [scratch.key(f"order/{name}") for name in ("a", "a-b", "b/c", "b/d", "é")]
    for key in keys:
        scratch.create(key, b"")
    prefix = scratch.prefix + "order/"
    found = list(scratch.fileio.list_keys(prefix))
    after = list(scratch.fileio.list_keys(prefix, start_after=keys[1]))
    grouped = [p for page in scratch.fileio.list(prefix, delimiter="/") for p in page.prefixes]
    if not scratch.fileio.capabilities.list_ordered:
        return _equal((sorted(found), sorted(after), grouped), (keys, keys[2:], [prefix + "b/"]))
    return _equal((found, after, grouped), (keys, keys[2:], [prefix + "b/"]))


def _delete(scratch: Scratch) -> Finding:
    there, missing = scratch.key("deleted"), scratch.key("never-there")
    scratch.create(there, b"")
    for _ in range(2):
        for result in scratch.fileio.delete([there, missing]):
            if result.error is not None:
                return Verdict.FAILED, str(result.error)
    return _equal(scratch.fileio.exists(there), False)


# ---- conditions --------------------------------------------------------------------------------------------------


def _create(scratch: Scratch) -> Finding:
    key = scratch.key("create")
    scratch.create(key, b"first")
    finding = _refused(scratch.fileio.put(key, b"second", Create()))
    return finding if finding != KEPT else _equal(scratch.fileio.read(key), b"first")


def _update(scratch: Scratch) -> Finding:
    key = scratch.key("update")
    version = scratch.create(key, b"first")
    finding = _accepted(scratch.fileio.put(key, b"second", Update(version)))
    return finding if finding != KEPT else _equal(scratch.fileio.read(key), b"second")


def _update_stale(scratch: Scratch) -> Finding:
    key = scratch.key("stale")
    stale = scratch.create(key, b"first")
    require_written(scratch.fileio.put(key, b"second"), repr(key))
    finding = _refused(scratch.fileio.put(key, b"third", Update(stale)))
    return finding if finding != KEPT else _equal(scratch.fileio.read(key), b"second")


def _update_missing(scratch: Scratch) -> Finding:
    key = scratch.key("missing")
    version = scratch.create(scratch.key("not-missing"), b"x")
    finding = _refused(scratch.fileio.put(key, b"y", Update(version)))
    return finding if finding != KEPT else _equal(scratch.fileio.exists(key), False)


def _complete_create(scratch: Scratch) -> Finding:
    key = scratch.key("complete-create")
    finding = _accepted(scratch.complete(key, b"first", Create()))
    return finding if finding != KEPT else _refused(scratch.complete(key, b"second", Create()))


def _complete_update(scratch: Scratch) -> Finding:
    key = scratch.key("complete-update")
    stale = scratch.create(key, b"first")
    finding = _accepted(scratch.complete(key, b"second", Update(stale)))
    return finding if finding != KEPT else _refused(scratch.complete(key, b"third", Update(stale)))


def _copy(scratch: Scratch) -> Finding:
    source, target = scratch.key("copy-source"), scratch.key("copy-target")
    scratch.create(source, b"copied")
    finding = _accepted(scratch.fileio.copy(source, target, Create()))
    return finding if finding != KEPT else _refused(scratch.fileio.copy(source, target, Create()))


def _append(scratch: Scratch) -> Finding:
    key = scratch.key("append")
    for offset, body in ((0, b"abc"), (3, b"def")):
        finding = _accepted(scratch.fileio.append(key, body, offset=offset))
        if finding != KEPT:
            return finding
    finding = _refused(scratch.fileio.append(key, b"ghi", offset=3))
    return finding if finding != KEPT else _equal(scratch.fileio.read(key), b"abcdef")


# ---- races -------------------------------------------------------------------------------------------------------


def _race(scratch: Scratch, name: str, act: Callable[[str, bytes, Version | None], PutOutcome], *, swap: bool) -> Finding:
    """Clients that write one key at the same moment. Exactly one may win, and its bytes must be there."""
    for round_number in range(RACE_ROUNDS):
        key = scratch.key(f"{name}-{round_number}")
        base = scratch.create(key, b"base") if swap else None
        bodies = [f"client {number} in round {round_number}".encode() for number in range(RACE_CLIENTS)]
        outcomes = _at_once([_bound(act, key, body, base) for body in bodies])
        errors = [outcome for outcome in outcomes if isinstance(outcome, FileIOError)]
        unknown = [outcome for outcome in outcomes if isinstance(outcome, OutcomeUnknown)]
        winners = [body for body, outcome in zip(bodies, outcomes, strict=True) if isinstance(outcome, Written)]
        if len(winners) > 1:
            return Verdict.IGNORED, f"{len(winners)} of {RACE_CLIENTS} clients were told that they alone had won."
        if errors or unknown:
            first = errors[0] if errors else unknown[0].cause
            return Verdict.FAILED, f"{len(errors) + len(unknown)} of {RACE_CLIENTS} clients got no clear answer: {first}"
        if not winners:
            return Verdict.REFUSED, f"All of {RACE_CLIENTS} clients were refused."
        finding = _equal(scratch.fileio.read(key), winners[0])
        if finding != KEPT:
            return finding
    return KEPT


def _bound(
    act: Callable[[str, bytes, Version | None], PutOutcome], key: str, body: bytes, base: Version | None
) -> Callable[[], PutOutcome]:
    return lambda: act(key, body, base)


def _at_once(calls: Sequence[Callable[[], PutOutcome]]) -> list[PutOutcome | FileIOError]:
    """The results of all calls, which start together, each in a thread."""
    gate = threading.Barrier(len(calls))

    def run(call: Callable[[], PutOutcome]) -> PutOutcome | FileIOError:
        gate.wait()
        try:
            return call()
        except FileIOError as error:
            return error

    return list(SystemEnv(parallelism=len(calls)).map(run, calls))


def _race_create(scratch: Scratch) -> Finding:
    return _race(scratch, "race-create", lambda key, body, _: scratch.fileio.put(key, body, Create()), swap=False)


def _race_update(scratch: Scratch) -> Finding:
    def act(key: str, body: bytes, base: Version | None) -> PutOutcome:
        assert base is not None
        return scratch.fileio.put(key, body, Update(base))

    return _race(scratch, "race-update", act, swap=True)


def _race_complete(scratch: Scratch) -> Finding:
    if not scratch.fileio.capabilities.conditional_complete:
        raise Unsupported(f"{scratch.fileio.url} ignores conditions on completing an upload.")
    return _race(scratch, "race-complete", lambda key, body, _: scratch.complete(key, body, Create()), swap=False)


# ---- profile -----------------------------------------------------------------------------------------------------


def _clock(scratch: Scratch) -> Finding:
    env = scratch.fileio.env
    before_ms = env.now_ms()
    written = require_written(scratch.fileio.put(scratch.key("clock"), b""), "the clock's object")
    if written.store_time_ms is None:
        return Verdict.UNSUPPORTED, "The store does not tell its time."
    skew_ms = written.store_time_ms - (before_ms + env.now_ms()) // 2
    detail = f"This machine is {abs(skew_ms) / 1000:.1f} s {'behind' if skew_ms > 0 else 'ahead of'} the store."
    return (Verdict.KEPT if abs(skew_ms) <= CLOCK_SKEW_MS_MAX else Verdict.FAILED), detail


def _versions(scratch: Scratch) -> Finding:
    key = scratch.key("versions")
    first, second, third = [
        require_written(scratch.fileio.put(key, body, Overwrite()), repr(key)).version for body in (b"same", b"other", b"same")
    ]
    if first == second:
        return Verdict.FAILED, "Other bytes did not change the version."
    if first != third:
        return Verdict.KEPT, "Generation: every write has its own version."
    if scratch.fileio.capabilities.content_versions:
        return Verdict.KEPT, "Content hash: equal bytes have the same version, so swapped objects carry a nonce."
    return Verdict.FAILED, "Equal bytes had the same version, which the store claims not to happen."


_CHECKS: Sequence[tuple[str, str, bool, Callable[[Scratch], Finding]]] = (
    ("round trip", "an object is read back as it was written", True, _round_trip),
    ("metadata", "metadata comes back with the object, so that a lost response can be settled", True, _metadata),
    ("read after write", "a read sees the newest write", True, _read_after_write),
    ("create", "a second create of one key is refused", True, _create),
    ("update", "a swap of the current version is accepted", True, _update),
    ("stale update", "a swap of an old version is refused", True, _update_stale),
    ("update of nothing", "a swap of an absent object is refused", True, _update_missing),
    ("concurrent creates", f"of {RACE_CLIENTS} clients that create one key, one wins", True, _race_create),
    ("concurrent updates", f"of {RACE_CLIENTS} clients that swap one version, one wins", True, _race_update),
    ("list after write", "a listing shows the newest write", False, _list_after_write),
    ("listing", "order, start-after and common prefixes of keys", False, _listing),
    ("ranges", "parts of an object are read as asked", False, _ranges),
    ("if-none-match", "an unchanged object is not sent again", False, _if_none_match),
    ("delete", "deletion of what is absent is no error", False, _delete),
    ("upload: create", "completion of an upload to an existing key is refused", False, _complete_create),
    ("upload: update", "completion of an upload over an old version is refused", False, _complete_update),
    ("concurrent uploads", f"of {RACE_CLIENTS} uploads that create one key, one wins", False, _race_complete),
    ("copy: create", "a copy to an existing key is refused", False, _copy),
    ("append", "bytes are added at the expected size only", False, _append),
    ("clock", f"the clocks differ by at most {CLOCK_SKEW_MS_MAX // 60_000} minutes", False, _clock),
    ("versions", "how versions are made", False, _versions),
)

__all__ = ["ProbeReport", "ProbeRow", "Verdict", "check_commit_store", "probe"]
