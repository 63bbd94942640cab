"""Deletion vectors of Delta: which rows of a file do not count. Each is a 64-bit Roaring bitmap; a slot writes one file of them.

Vectors are in files of storage type `u`, since some readers refuse inline ones. The id of such a file begins with the slot.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from fileio.env import Env, map_io
from fileio.errors import NotFound
from fileio.optional import library
from objcat.common.bounded_cache import BoundedCache
from objcat.mirror.delta.actions import RESTART, DeltaVector
from objcat.mirror.model import CorruptMirror, MirrorFolder, Positions

VECTORS_FOLDER = "deltavectors"
"""The folder of vector files, below that of the mirror. Readers take it as the prefix of the id; Trino takes letters and digits alone."""
_KEY = re.compile(r"deletion_vector_([0-9a-f]{8})-([0-9a-f]{4})-([0-9a-f]{4})-[0-9a-f]{4}-[0-9a-f]{12}\.bin")
_MAGIC = struct.pack("<I", 1681511377)
_VERSION = b"\x01"
_ID_LENGTH = 20
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
CACHE_BYTES = 64 * 1024 * 1024
"""Vectors that a mirror remembers, so that a commit reads none of those that it wrote."""
GAP_BYTES = 64 * 1024


def bitmaps(*, needed_by: str = "Mirrors need") -> Any:
    """The library of bitmaps. Raises MissingDependency."""
    return library("pyroaring", needed_by=needed_by, extra="mirrors")


class VectorFile:
    """Vectors that one slot writes, as one object.

    Args:
        slot: The slot.
        env: Draws the rest of the name.
    """

    def __init__(self, slot: int, env: Env) -> None:
        self._id = struct.pack(">Q", slot) + bytes.fromhex(env.new_id())
        self._parts = [_VERSION]
        self._size = len(_VERSION)

    def add(self, positions: Any) -> tuple[DeltaVector, bytes]:
        """Add a vector. Returns where it is, and its bytes.

        positions: a bitmap.
        """
        data = _MAGIC + positions.serialize()
        vector = DeltaVector(
            storage_type="u",
            path_or_inline_dv=f"{VECTORS_FOLDER}{encode_z85(self._id)}",
            offset=self._size,
            size_in_bytes=len(data),
            cardinality=len(positions),
        )
        part = struct.pack(">I", len(data)) + data + struct.pack(">I", zlib.crc32(data))
        self._parts.append(part)
        self._size += len(part)
        return vector, data

    @property
    def size(self) -> int:
        """Its bytes."""
        return self._size

    @property
    def name(self) -> str:
        """Its key, relative to the folder of the mirror."""
        return _name_of(VECTORS_FOLDER, self._id)

    @property
    def is_empty(self) -> bool:
        """Whether no vector was added."""
        return len(self._parts) == 1

    @property
    def data(self) -> bytes:
        """Its bytes."""
        return b"".join(self._parts)


class Vectors:
    """Reads vectors of a mirror, and remembers the newest ones."""

    def __init__(self, folder: MirrorFolder) -> None:
        self._folder = folder
        self._known: BoundedCache[bytes] = BoundedCache(bytes_max=CACHE_BYTES)

    def remember(self, vector: DeltaVector, data: bytes) -> None:
        """Keep the bytes of a vector."""
        self._known.put(_place(vector), data, len(data))

    def read(self, vectors: Iterable[DeltaVector]) -> dict[DeltaVector, Any]:
        """The bitmaps of vectors. Raises CorruptMirror."""
        found: dict[DeltaVector, bytes] = {}
        missing: dict[str, list[DeltaVector]] = {}
        for vector in vectors:
            data = self._known.get(_place(vector))
            if data is None:
                missing.setdefault(vector_name(vector), []).append(vector)
            else:
                found[vector] = data
        for pairs in map_io(self._folder.fileio.env, lambda item: self._read_file(*item), missing.items()):
            for vector, data in pairs:
                self.remember(vector, data)
                found[vector] = data
        return {vector: self._decoded(vector, data) for vector, data in found.items()}

    def _read_file(self, name: str, vectors: Sequence[DeltaVector]) -> list[tuple[DeltaVector, bytes]]:
        key = f"{self._folder.folder}{name}"
        ranges = [((vector.offset or 0), (vector.offset or 0) + vector.size_in_bytes + 8) for vector in vectors]
        try:
            parts = self._folder.fileio.get_ranges(key, ranges, gap_bytes=GAP_BYTES)
        except NotFound as error:
            raise CorruptMirror(f"The Delta mirror of {self._folder.name} lacks {key}, which it names. {RESTART}") from error
        return [(vector, self._checked(key, vector, part)) for vector, part in zip(vectors, parts, strict=True)]

    def _checked(self, key: str, vector: DeltaVector, part: bytes) -> bytes:
        data = part[4:-4]
        whole = len(part) == vector.size_in_bytes + 8 and struct.unpack(">I", part[:4])[0] == vector.size_in_bytes
        if not whole or struct.unpack(">I", part[-4:])[0] != zlib.crc32(data):
            raise CorruptMirror(f"{key} of the Delta mirror of {self._folder.name} has no vector at {vector.offset}. {RESTART}")
        return data

    def _decoded(self, vector: DeltaVector, data: bytes) -> Any:
        bitmap = None
        if data.startswith(_MAGIC):
            try:
                bitmap = bitmaps().BitMap64.deserialize(data[len(_MAGIC) :])
            except ValueError:
                bitmap = None
        if bitmap is None or len(bitmap) != vector.cardinality:
            name = vector_name(vector)
            raise CorruptMirror(f"{name} of the Delta mirror of {self._folder.name} has a damaged vector at {vector.offset}. {RESTART}")
        return bitmap


def positions_of(bitmap: Any) -> Positions:
    """The positions in a bitmap."""
    return np.asarray(bitmap.to_array()).astype(np.int64)


def vector_name(vector: DeltaVector) -> str:
    """The key of the file of a vector, relative to the folder of the mirror. Raises CorruptMirror for a vector that is in no such file."""
    said = vector.path_or_inline_dv
    if vector.storage_type != "u" or len(said) < _ID_LENGTH or vector.offset is None:
        raise CorruptMirror(f"A deletion vector of the mirror is not in a file of objcat's: {vector}. {RESTART}")
    return _name_of(said[:-_ID_LENGTH], decode_z85(said[-_ID_LENGTH:]))


def vector_slot(key: str) -> int | None:
    """The slot that wrote a file of vectors. None if the key names no such file."""
    found = _KEY.fullmatch(key.rpartition("/")[2])
    return None if found is None else int("".join(found.groups()), 16)


def _name_of(prefix: str, identity: bytes) -> str:
    digits = identity.hex()
    parted = "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))
    return f"{prefix}/deletion_vector_{parted}.bin" if prefix else f"deletion_vector_{parted}.bin"


def _place(vector: DeltaVector) -> str:
    return f"{vector.path_or_inline_dv}@{vector.offset}"


def encode_z85(data: bytes) -> str:
    """Bytes as text, five characters for four bytes (https://rfc.zeromq.org/spec/32/)."""
    words = struct.unpack(f">{len(data) // 4}I", data)
    return "".join(_DIGITS[word // 85**power % 85] for word in words for power in (4, 3, 2, 1, 0))


def decode_z85(text: str) -> bytes:
    """The bytes of such a text. Raises CorruptMirror."""
    try:
        numbers = [_DIGITS.index(character) for character in text]
        words = [sum(number * 85 ** (4 - at) for at, number in enumerate(numbers[i : i + 5])) for i in range(0, len(numbers), 5)]
        return struct.pack(f">{len(words)}I", *words)
    except (ValueError, struct.error) as error:
        raise CorruptMirror(f"The id {text!r} of a file of deletion vectors is not one. {RESTART}") from error


def union(vectors: Mapping[DeltaVector, Any], old: DeltaVector | None, masked: Positions) -> Any:
    """A bitmap of more masked rows, with those that were masked before."""
    found = bitmaps().BitMap64(masked.astype(np.uint64))
    return found if old is None else found | vectors[old]
