"""Which slots of a mirror an erasure has forgotten, in a small object beside the mirror.

An erasure begins a mirror again, and deletes what was written for earlier slots. A process that read the table before may put the mirror of
such a slot after that, with bounds of erased rows. If it goes on, it deletes that itself. If it died, the next one that expires the mirror
does: this object says from which slot on something may be there.
"""

from __future__ import annotations

from fileio.contract import Create, GetResult, PreconditionFailed, PutMode, Update, Version, require_written
from fileio.errors import NotFound, Unavailable
from fileio.store import FileIO

FORGOTTEN = "forgotten-before.text"
"""The name of the object. It holds the slot as digits."""
PUTS_MAX = 5


def forgotten_before(fileio: FileIO, key: str) -> int:
    """The slot below which nothing of a mirror may be there, 0 if no erasure said so. One GET. Raises storage errors."""
    return _read(fileio, key)[0]


def forget_slots(fileio: FileIO, key: str, before: int) -> None:
    """Say that nothing below a slot may be there from now on. The greatest slot counts.

    Call it once the mirror names nothing of earlier slots, before any of them is deleted.

    Raises:
        Unavailable: Others changed the object each time.
        FileIOError: Of the store, or it is not known whether it was put. Call it again.
    """
    for _ in range(PUTS_MAX):
        slot, version = _read(fileio, key)
        if slot >= before:
            return
        mode: PutMode = Create() if version is None else Update(version)
        outcome = fileio.put(key, str(before).encode(), mode)
        if not isinstance(outcome, PreconditionFailed):
            require_written(outcome, f"{key!r}")
            return
    raise Unavailable(f"{key} could not be put: other processes changed it each time.")


def _read(fileio: FileIO, key: str) -> tuple[int, Version | None]:
    try:
        found = fileio.get(key)
    except NotFound:
        return 0, None
    assert isinstance(found, GetResult)
    text = found.data.strip()
    # What makes no sense is replaced.
    return int(text) if text.isdigit() and len(text) < 19 else 0, found.meta.version
