"""Digests of data files in entries and manifests: of the whole file, and of its footer.

A value is the name of an algorithm, a colon and hexadecimal digits. The only algorithm is `xxh3`: XXH3 without a seed, with 128 bits for a
file and 64 for a footer. It finds damage, not forgery: who can write into the bucket can write entries too. A file without a value, or with
one of another algorithm, is not verified.
"""

from __future__ import annotations

from typing import Protocol

import xxhash

from objcat.errors import CorruptTable

_PREFIX = "xxh3:"
FILE_BYTES, FOOTER_BYTES = 16, 8
"""Sizes of the digests in manifests, in bytes."""


class Hash(Protocol):
    """An incremental digest."""

    def update(self, data: bytes, /) -> None:
        """Add the next bytes."""

    def hexdigest(self) -> str:
        """The digest so far, in hexadecimal digits."""


class FileHash:
    """The digest of a file whose bytes come in pieces, in order. For one thread."""

    def __init__(self) -> None:
        self._hash: Hash = xxhash.xxh3_128()

    def update(self, data: bytes | memoryview) -> None:
        """Add the next bytes."""
        self._hash.update(data)  # type: ignore[arg-type]  # any buffer will do

    @property
    def text(self) -> str:
        """The digest of the bytes so far, as an entry holds it."""
        return _PREFIX + self._hash.hexdigest()


def digest_of(data: bytes | memoryview) -> str:
    """The digest of a whole file."""
    return _PREFIX + xxhash.xxh3_128_hexdigest(data)


def footer_digest_of(data: bytes | memoryview) -> str:
    """The digest of a footer: from the beginning of Parquet's metadata to the end of the file."""
    return _PREFIX + xxhash.xxh3_64_hexdigest(data)


def is_verifiable(text: str | None) -> bool:
    """Whether this objcat can compute the digest of an entry."""
    return text is not None and text.startswith(_PREFIX)


def packed(text: str | None, size: int, *, path: str) -> bytes | None:
    """A digest as manifests hold it. None for none, and for another algorithm. Raises CorruptTable for a malformed one."""
    if text is None or not is_verifiable(text):
        return None
    try:
        data = bytes.fromhex(text.removeprefix(_PREFIX))
    except ValueError:
        data = b""
    if len(data) != size:
        raise CorruptTable(
            f"The entry that names {path} gives it the digest {text!r}. It must have {size} bytes. Restore that entry from a backup."
        )
    return data


def unpacked(data: bytes | None) -> str | None:
    """A digest from a manifest."""
    return None if data is None else _PREFIX + data.hex()
