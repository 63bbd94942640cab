"""Computes the digest of a file while Arrow's writer writes it to the store, so that no byte is read again."""

from __future__ import annotations

from fileio.contract import require_written
from fileio.write_stream import WriteStream
from objcat.metadata.file_digest import FileHash


class DigestingSink:
    """A writable file that hashes its bytes. For Arrow's writer, in one thread."""

    def __init__(self, out: WriteStream) -> None:
        self._out = out
        self._hash = FileHash()
        self._kept: list[bytes] | None = None

    @property
    def closed(self) -> bool:
        """Whether the file is finished or aborted."""
        return self._out.closed

    @property
    def digest(self) -> str:
        """The digest of all bytes so far."""
        return self._hash.text

    def write(self, data: bytes) -> int:
        """Hash and write some bytes."""
        self._hash.update(data)
        if self._kept is not None:
            self._kept.append(bytes(data))
        return self._out.write(data)

    def keep(self) -> None:
        """Retain what is written from now on. The footer is the end of it."""
        self._kept = []

    def kept_footer(self) -> bytes:
        """The footer, with its length and Parquet's magic number."""
        kept = b"".join(self._kept or ())
        return kept[-(int.from_bytes(kept[-8:-4], "little") + 8) :]

    def tell(self) -> int:
        """Bytes written so far."""
        return self._out.tell()

    def flush(self) -> None:
        """Nothing to do: the store writes parts by itself."""
        self._out.flush()

    def finish(self) -> None:
        """Complete the object. Raises NotWritten and storage errors."""
        require_written(self._out.finish(), repr(self._out.name))

    def abort(self) -> None:
        """Discard the object."""
        self._out.abort()
