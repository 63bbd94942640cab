"""The metadata files of a mirror, `v<n>.metadata.json`, and the hint: found, read, and put.

The put of a metadata file is the commit of a slot's mirror. The hint is for engines that read a table by its path. Nothing here relies on
it: the metadata files are listed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from fileio.contract import Create, GetResult, OutcomeUnknown, PreconditionFailed, PutMode, Update, Version, Written
from fileio.env import map_io
from fileio.errors import FileIOError, NotFound, Unavailable
from objcat.mirror.iceberg.objects import MirrorObjects, Uploads, pointer_name, slot_of_pointer
from objcat.mirror.iceberg.table_metadata import mirrored_slot, read_document
from objcat.mirror.iceberg.types import Record
from objcat.mirror.model import CorruptMirror, ForeignMetadata, MirroredSlot, MirrorFolder, MirrorSlotTaken

_PUTS_MAX = 4
HINT = "version-hint.text"
_PACKED = (".gz.metadata.json", ".metadata.json.gz")


class Pointers:
    """The metadata files of one mirror."""

    def __init__(self, where: MirrorFolder, objects: MirrorObjects) -> None:
        self._table = where.table
        self._fileio = where.fileio
        self._objects = objects
        self._hint: tuple[int | None, Version | None] | None = None

    def newest(self) -> Record | None:
        """The newest metadata file. None if there is none, or if it was copied from another place.

        Raises:
            ForeignMetadata: It was not written by objcat.
            CorruptMirror: It cannot be read.
        """
        while True:
            slot = max(self.slots(), default=None)
            if slot is None:
                return None
            found = self._get(slot)
            if found is not None:
                return self._judge(slot, found)

    def read(self, slot: int) -> Record | None:
        """The metadata file of a slot. None if it is gone, or readers cannot use it either."""
        found = self._get(slot)
        try:
            return None if found is None else self._judge(slot, found)
        except (CorruptMirror, ForeignMetadata):
            return None

    def is_newest(self, slot: int) -> bool:
        """Whether a slot is still the newest one, as far as two reads can tell."""
        later, hint = map_io(self._fileio.env, self._peek, [pointer_name(slot + 1), HINT])
        hinted = _number(hint)
        return later is None and (hinted is None or hinted <= slot + 1)

    def slots(self) -> Iterator[int]:
        """The slots of all metadata files. Raises ForeignMetadata if one is packed, which objcat's are not."""
        prefix = self._objects.key("")
        for key in self._fileio.list_keys(prefix + "v"):
            name = key.removeprefix(prefix)
            slot = slot_of_pointer(name)
            if slot is not None:
                yield slot
            elif name.endswith(_PACKED):
                raise ForeignMetadata(f"{key} was not written by objcat. Nothing was changed. Move the other table away from this prefix.")

    def put(self, slot: int, data: bytes, *, txn: str, restarts: bool, replaces: bool, uploads: Uploads) -> None:
        """Put the metadata file of a slot.

        Args:
            slot: its slot.
            data: its bytes.
            txn: the transaction of the slot.
            restarts: whether it may replace one that is copied or unreadable.
            replaces: whether it may replace any: what that names cannot be used.
            uploads: what it names. It is kept when the outcome is not known.

        Raises:
            MirrorSlotTaken: Another process was first.
            FileIOError: The outcome is not known. The next `newest` tells it.
        """
        mode: PutMode = Create()
        key = self._objects.key(pointer_name(slot))
        for attempt in range(1, _PUTS_MAX + 1):
            match self._fileio.put(key, data, mode, want_found=True):
                case Written():
                    return
                case PreconditionFailed(found=found):
                    other = found or self._get(slot)
                    if other is not None and other.data == data:
                        return  # An attempt of ours took effect, or another process wrote the same.
                    if other is None or not (replaces or (restarts and not self._is_usable(slot, other))):
                        raise self._taken(slot, txn, other)
                    mode = Update(other.meta.version)
                case OutcomeUnknown(cause):
                    # Whatever the next attempts meet, this one may take effect.
                    uploads.keep()
                    if attempt == _PUTS_MAX:
                        raise cause
        raise self._taken(slot, txn, None)

    def put_hint(self, slot: int) -> bool:
        """Point to a slot, unless the hint points to a later one. A failure does no harm.

        Engines that do not find the hint, or an old one, look for later metadata files themselves.

        Returns:
            Whether there is no later slot, as far as the hint can tell.
        """
        try:
            return self._put_hint(slot)
        except FileIOError:
            self._hint = None
            return True

    def require_hint(self, slot: int) -> None:
        """Check that the hint points to a slot or a later one, or put it. Raises storage errors."""
        self._hint = self._read_hint()
        number, _ = self._hint
        if number is None or number <= slot:
            self._put_hint(slot)
            if self._hint is None:
                key = self._objects.key(HINT)
                raise Unavailable(f"It is not known whether {key} was put, after {_PUTS_MAX} attempts. Nothing was deleted. Call it again.")

    def _put_hint(self, slot: int) -> bool:
        for _ in range(_PUTS_MAX):
            number, version = self._hint or self._read_hint()
            if number is not None and number > slot + 1 and max(self.slots(), default=slot) > slot:
                return False
            mode: PutMode = Create() if version is None else Update(version)
            match self._fileio.put(self._objects.key(HINT), str(slot + 1).encode(), mode):
                case Written(version=new):
                    self._hint = slot + 1, new
                    return True
                case PreconditionFailed() | OutcomeUnknown():
                    self._hint = None
        return True

    def _read_hint(self) -> tuple[int | None, Version | None]:
        try:
            found = self._fileio.get(self._objects.key(HINT))
        except NotFound:
            return None, None
        assert isinstance(found, GetResult)
        return _number(found.data), found.meta.version

    def is_dropped(self, slot: int) -> bool:
        """Whether the mirror began again at a later slot, so that nothing builds on the metadata file of this one."""
        newest = self.newest()
        if newest is None or mirrored_slot(newest).slot <= slot:
            return False
        return all(snapshot["snapshot-id"] != slot + 1 for snapshot in newest["snapshots"])

    def delete(self, slot: int) -> None:
        """Delete the metadata file of a slot."""
        self._fileio.delete([self._objects.key(pointer_name(slot))])

    def remove_later(self, slot: int) -> None:
        """Delete metadata files of later slots, which a mirror that begins again cannot use: they are copied or unreadable."""
        with contextlib.suppress(FileIOError):
            for later in [found for found in self.slots() if found > slot]:
                found = self._get(later)
                if found is not None and not self._is_usable(later, found):
                    self.delete(later)

    def _judge(self, slot: int, found: GetResult) -> Record | None:
        """A metadata file of this mirror. None if it was copied from another place."""
        document = read_document(found.data, where=found.meta.key, table=self._table, slot=slot)
        return document if document["location"] == self._objects.location else None

    def _is_usable(self, slot: int, found: GetResult) -> bool:
        try:
            return self._judge(slot, found) is not None
        except CorruptMirror:
            return False

    def _taken(self, slot: int, txn: str, other: GetResult | None) -> Exception:
        if other is not None:
            winner: MirroredSlot = mirrored_slot(read_document(other.data, where=other.meta.key, table=self._table, slot=slot))
            if winner != MirroredSlot(slot, txn):
                return CorruptMirror(
                    f"{other.meta.key} is of slot {winner.slot} and transaction {winner.txn!r}, but the log has {txn!r} at slot {slot}. "
                    "Nothing was changed. Let the mirror begin again at a later slot."
                )
        return MirrorSlotTaken(f"Another process wrote the Iceberg mirror of slot {slot} first. Nothing of this attempt is visible.")

    def _get(self, slot: int) -> GetResult | None:
        try:
            found = self._fileio.get(self._objects.key(pointer_name(slot)))
        except NotFound:
            return None
        assert isinstance(found, GetResult)
        return found

    def _peek(self, name: str) -> bytes | None:
        try:
            return self._fileio.read(self._objects.key(name))
        except NotFound:
            return None


def _number(hint: bytes | None) -> int | None:
    text = b"" if hint is None else hint.strip()
    return int(text) if text.isdigit() and len(text) < 19 else None
