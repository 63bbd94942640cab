"""Between Arrow's writer and the store: what goes by is hashed, so that no byte of a file is read again for its digest."""

from __future__ import annotations

from fileio.contract import require_written
from fileio.write_stream import WriteStream
from objcat.metadata.file_digest import FileHash


class DigestingSink:
    """A file to write to, whose digest is computed as its bytes go by. For Arrow's writer, in one thread."""

    def __init__(self, out: WriteStream) -> None:
        self._out = out
        self._hash = FileHash()
        self._kept: list[bytes] | None = None

    @property
    def closed(self) -> bool:
        return self._out.closed

    @property
    def digest(self) -> str:
        """Of all bytes so far."""
        return self._hash.text

    def write(self, data: bytes) -> int:
        self._hash.update(data)
        if self._kept is not None:
            self._kept.append(bytes(data))
        return self._out.write(data)

    def keep(self) -> None:
        """Hold what is written from now on: the footer is the end of it."""
        self._kept = []

    def kept_footer(self) -> bytes:
        """The footer, with its length and Parquet's magic number."""
        kept = b"".join(self._kept or ())
        return kept[-(int.from_bytes(kept[-8:-4], "little") + 8) :]

    def tell(self) -> int:
        return self._out.tell()

    def flush(self) -> None:
        self._out.flush()

    def finish(self) -> None:
        """The object is there now. Raises NotWritten, storage errors."""
        require_written(self._out.finish(), repr(self._out.name))

    def abort(self) -> None:
        self._out.abort()
