"""What reading an object back says about a write whose response was lost, by HEAD or by GET."""

from __future__ import annotations

from collections.abc import Callable

from fileio.contract import Buffer, GetResult, NotModified, ObjectMeta, PutMode
from fileio.errors import FileIOError, NotFound
from fileio.write_outcomes import Absent, Evidence, Foreign, WriteIsOurs, evidence_of


def head_evidence(head: Callable[[], ObjectMeta], write_id: str, mode: PutMode, *, size: int | None) -> Evidence:
    """The evidence in the metadata of an object.

    Args:
        head: Reads the metadata.
        write_id: The id of our write.
        mode: The condition of our write.
        size: The number of bytes that we sent; None when it is not known.

    Raises:
        FileIOError: The object is ours but has another size, so its content is not known.
    """
    try:
        meta = head()
    except NotFound:
        return Absent()
    found = evidence_of(meta, write_id, mode)
    if isinstance(found, WriteIsOurs) and size not in (None, meta.size):
        raise FileIOError(f"{meta.key!r} has {meta.size} bytes in the store, but {size} were sent. Delete it and write it again.")
    return found


class ReadBack:
    """As `head_evidence`, but by GET. `found` is the object that the last call found."""

    def __init__(self, get: Callable[[], GetResult | NotModified], write_id: str, mode: PutMode, *, size: int) -> None:
        self.found: GetResult | None = None
        self._get = get
        self._write_id = write_id
        self._mode = mode
        self._size = size

    def __call__(self) -> Evidence:
        return head_evidence(self._meta, self._write_id, self._mode, size=self._size)

    def _meta(self) -> ObjectMeta:
        result = self._get()
        assert isinstance(result, GetResult)
        self.found = result
        return result.meta


def appended_evidence(get: Callable[[], GetResult | NotModified], data: Buffer) -> Evidence:
    """The evidence in the bytes where `data` was to be appended. `get` reads as many bytes there."""
    try:
        result = get()
    except NotFound:
        return Absent()
    assert isinstance(result, GetResult)
    ours = result.data == bytes(data) and len(data) > 0
    return WriteIsOurs(result.meta.version) if ours else Foreign(result.meta.version, came_instead=len(result.data) > 0)
