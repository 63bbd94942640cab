"""`WriteStream`: a binary file for writing that becomes one object when it is finished."""

from __future__ import annotations

import io
import sys
import warnings
from collections import deque
from collections.abc import Mapping
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

from fileio.contract import (
    Buffer,
    Capabilities,
    Overwrite,
    PreconditionFailed,
    PutMode,
    PutOutcome,
    Upload,
    require_written,
)
from fileio.env import Env
from fileio.errors import FileIOError, Unsupported
from fileio.stream_settings import StreamSettings, as_bytes
from fileio.upload_parts import PartPool, UploadPart, WholePart, part_size

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class UploadTarget(Protocol):
    """What a writer needs of a store. `FileIO` is one. Its calls retry and settle."""

    @property
    def capabilities(self) -> Capabilities:
        """What the store can do."""

    @property
    def env(self) -> Env:
        """Clock and threads."""

    def put(self, key: str, data: Buffer, mode: PutMode | None = None, *, metadata: Mapping[str, str] | None = None) -> PutOutcome:
        """As `FileIO.put`."""

    def start_upload(self, key: str, mode: PutMode | None = None, *, metadata: Mapping[str, str] | None = None) -> Upload:
        """As `FileIO.start_upload`."""


class WriteStream(io.RawIOBase):
    """A binary file for writing. When it is finished, the whole object appears under its condition; otherwise nothing does.

    An object of at most one part is one put. A larger one is uploaded in parts while the caller writes on. Memory: at most
    `parallelism + 1` parts. For one thread at a time.

    Leaving a `with` block closes the stream; leaving it by an exception aborts. A dropped stream is aborted with a ResourceWarning.
    Closing it while an exception is handled that came after its opening aborts it too, with a RuntimeWarning: what was written may be half
    an object. A `finally` block does that, and so do wrappers (`io.TextIOWrapper`, a stream of Arrow) that leave their own block. Call
    `finish()` when the object is complete.
    """

    def __init__(self, target: UploadTarget, key: str, mode: PutMode, metadata: Mapping[str, str], settings: StreamSettings) -> None:
        super().__init__()
        self._target = target
        self._key = key
        self._mode = mode
        self._metadata = metadata
        self._settings = settings
        self._capabilities = target.capabilities
        self._position = 0
        self._number = 1
        self._parts = PartPool(settings.spill_directory)
        self._filling: UploadPart | None = None
        self._upload: Upload | None = None
        self._sending: deque[tuple[Future[None], UploadPart]] = deque()
        self._sending_max = settings.parallelism if self._capabilities.parallel_parts else 1
        self._outcome: PutOutcome | None = None
        self._failure: BaseException | None = None
        self._handled_before = id(sys.exception())

    # ---- what a file is

    @property
    def name(self) -> str:
        """The key."""
        return self._key

    def writable(self) -> bool:
        """Always True."""
        return True

    def tell(self) -> int:
        """The number of bytes written so far."""
        return self._position

    def flush(self) -> None:
        """Does nothing. No byte is visible or durable before the stream is finished."""

    def write(self, data: ReadableBuffer, /) -> int:
        """Take all of `data`. Waits while `parallelism` parts are being sent.

        The bytes are copied, so a buffer may be used again. Only `bytes` of exactly the part size, in memory, are sent as they are.

        Args:
            data: Any bytes-like object.

        Returns:
            The length of `data` in bytes.

        Raises:
            Unsupported: The object is too large. As with every error of an earlier part, the stream is aborted.
        """
        self._check_open()
        with memoryview(data) as view, as_bytes(view) as source:
            length = len(source)
            taken = 0
            try:
                while taken < length:
                    taken += self._take(data if isinstance(data, bytes) else b"", source[taken:])
            except BaseException as error:
                self._fail(error)
                raise
        self._position += length
        return length

    # ---- the end

    def finish(self) -> PutOutcome:
        """Make the object visible under the condition and close the stream. Later calls return the same outcome.

        Returns:
            The outcome. After Written and PreconditionFailed no upload is left. After OutcomeUnknown it stays, as it may still take effect.

        Raises:
            UploadLost: The upload is gone. As with every error here, nothing was written, and the upload is aborted.
        """
        if self._outcome is not None:
            return self._outcome
        self._check_open()
        try:
            outcome = self._put_whole() if self._upload is None else self._complete(self._upload)
        except BaseException as error:
            self._fail(error)
            raise
        self._outcome = outcome
        self._release()
        return outcome

    def close(self) -> None:
        """Finish the stream. A closed or aborted stream stays as it is.

        While an exception is handled that came after the opening, this aborts instead, with a RuntimeWarning.

        Raises:
            NotWritten: The outcome is not Written.
        """
        if self.closed:
            return
        handled = sys.exception()
        if handled is None or id(handled) == self._handled_before:
            require_written(self.finish(), f"{self._key!r}")
        else:
            self._give_up(handled)
            why = f"Nothing is written to {self._key!r}. Its stream was closed while {type(handled).__name__} was handled."
            warnings.warn(why, RuntimeWarning, stacklevel=2)

    def abort(self) -> None:
        """Give up: nothing becomes visible, and no upload is left. Harmless when repeated, or after the end of the stream.

        Raises:
            Unavailable: The upload could not be removed. Call again to retry. Throttled means the same.
        """
        self._withdraw()
        self._release()

    def __enter__(self) -> Self:
        self._check_open()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if error is None:
            self.close()
        else:
            self._give_up(error)

    def __del__(self) -> None:
        # The base class would close the stream, and so publish what may be half an object.
        if not getattr(self, "_parts", None) or self.closed:
            return
        with suppress(Exception):
            self.abort()
        warnings.warn(f"The stream that writes {self._key!r} was dropped unfinished. Nothing is written.", ResourceWarning, stacklevel=2)

    # ---- how

    def _give_up(self, error: BaseException) -> None:
        """Abort because of an error. Errors of the abort become a note of it."""
        try:
            self.abort()
        except FileIOError as left:
            error.add_note(f"The upload of {self._key!r} could not be removed ({left}).")

    def _check_open(self) -> None:
        if isinstance(self._failure, Exception):
            raise self._failure
        if self.closed:
            raise ValueError(f"The stream that writes {self._key!r} is closed. Open another one.")

    def _take(self, whole: bytes, left: memoryview) -> int:
        """Put as much of `left` into the current part as fits. `whole`: the bytes that `left` is a view of, if it may be retained.

        A full part is sent at once. The first is sent only when a second is needed, since a single part is put.
        """
        self._send_if_full()
        if self._filling is None:
            size = self._next_size()
            self._collect()
            if len(whole) == len(left) == size and self._settings.spill_directory is None:
                self._filling = WholePart(whole)
            else:
                self._filling = self._parts.take(size)
        taken = self._filling.fill(left)
        if self._upload is not None:
            self._send_if_full()
        return taken

    def _next_size(self) -> int:
        if self._number > self._capabilities.parts_max:
            raise Unsupported(
                f"{self._key!r} is too large. {self._position} bytes and more fill the {self._capabilities.parts_max} parts of an upload."
                f" Raise the stream setting 'part_bytes' above {self._settings.part_bytes}."
            )
        return part_size(self._number, first_bytes=self._settings.part_bytes, capabilities=self._capabilities)

    def _send_if_full(self) -> None:
        if self._filling is not None and self._filling.is_full:
            self._send(self._filling)

    def _send(self, part: UploadPart) -> None:
        self._wait_for_room()
        upload, number = self._started(), self._number
        self._filling = None
        self._number += 1
        content = part.content()
        self._sending.append((self._target.env.submit_io(lambda: upload.put_part(number, content)), part))

    def _started(self) -> Upload:
        if self._upload is None:
            if not isinstance(self._mode, Overwrite) and not self._capabilities.conditional_complete:
                raise Unsupported(
                    f"{self._key!r} is longer than one part, and this store ignores conditions on completing an upload."
                    f" Raise the stream setting 'part_bytes' above {self._settings.part_bytes}, so that one put is enough."
                )
            self._upload = self._target.start_upload(self._key, self._mode, metadata=self._metadata)
        return self._upload

    def _wait_for_room(self) -> None:
        """Wait until fewer parts than allowed are being sent. Raises the error of a part."""
        self._collect()
        while len(self._sending) >= self._sending_max:
            wait([future for future, _ in self._sending], return_when=FIRST_COMPLETED)
            self._collect()

    def _collect(self) -> None:
        """Take back the parts that are sent. Raises the error of a part."""
        under_way = [(future, part) for future, part in self._sending if not future.done()]
        done = [(future, part) for future, part in self._sending if future.done()]
        self._sending = deque(under_way)
        for future, _ in done:
            future.result()
        for _, part in done:
            self._parts.give_back(part)

    def _put_whole(self) -> PutOutcome:
        if self._filling is None:
            return self._target.put(self._key, b"", self._mode, metadata=self._metadata)
        if self._position > self._capabilities.put_bytes_max:
            return self._complete(self._started())
        return self._target.put(self._key, self._filling.content(), self._mode, metadata=self._metadata)

    def _complete(self, upload: Upload) -> PutOutcome:
        if self._filling is not None:
            self._send(self._filling)
        wait([future for future, _ in self._sending])
        self._collect()
        outcome = upload.complete()
        if isinstance(outcome, PreconditionFailed):
            with suppress(FileIOError):
                upload.abort()
        return outcome

    def _fail(self, error: BaseException) -> None:
        """Abort as far as the store allows, and remember the error."""
        self._failure = error
        try:
            self._withdraw()
        except FileIOError as left:
            error.add_note(f"The upload of {self._key!r} could not be removed ({left}).")
        self._release()

    def _withdraw(self) -> None:
        """Remove the upload after its last part: a part that arrives later would remain."""
        for future, _ in self._sending:
            future.cancel()
        wait([future for future, _ in self._sending])
        self._sending.clear()
        if self._upload is not None and self._outcome is None:
            self._upload.abort()
            self._upload = None

    def _release(self) -> None:
        self._filling = None
        self._sending.clear()
        self._parts.close()
        super().close()


__all__ = ["UploadTarget", "WriteStream"]
