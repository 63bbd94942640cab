"""`ResumableUpload`: an upload in parts to `gs://` through a resumable session. `fileio.gcs.backend` has the reasons."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Protocol, TypeVar

from fileio.contract import Buffer, OutcomeUnknown, Overwrite, PreconditionFailed, PutMode, PutOutcome, Upload, Version, Written
from fileio.errors import BucketNotFound, FileIOError, NotFound, Unavailable, UploadLost
from fileio.gcs.client import ConditionFailed, Refused, bytes_reached, crc32c, crc32c_header, milliseconds

CHUNK_BYTES_MULTIPLE = 256 * 1024
CONTENT_TYPE = "application/octet-stream"


R = TypeVar("R")


class UploadClient(Protocol):
    """What an upload needs of the backend that started it."""

    _timeout: Any

    @property
    def _session(self) -> Any:
        """A session of the SDK. It authorizes its requests."""

    @property
    def _key_headers(self) -> Mapping[str, str]:
        """Headers of a customer key, if any."""

    def _read(self, key: str, request: Callable[[], R]) -> R:
        """Send a request that is harmless to repeat. Raises typed errors."""

    def _write(self, key: str, mode: PutMode, request: Callable[[], PutOutcome]) -> PutOutcome:
        """Send a request that creates an object. Raises typed errors that certainly had no effect."""


class ResumableUpload(Upload):
    """A resumable session. The newest part waits for the next one or for `complete`: the last chunk must say that it is the last.

    A chunk whose answer was lost is sent again from its beginning. The store ignores bytes at offsets that it already has, and says how far
    it got. A session that is complete and forgotten answers 404. Then the read-back of the object decides.

    Args:
        backend: The backend.
        key: The key of the object.
        session_url: The session; None when the condition failed at the start. Then parts go nowhere, and `complete` answers
            PreconditionFailed.
    """

    def __init__(self, backend: UploadClient, key: str, session_url: str | None) -> None:
        self._backend = backend
        self._name = key
        self._session_url = session_url
        self._number = 0
        self._held = b""
        self._offset = 0
        self._crc32c: int | None = 0

    def put_part(self, number: int, data: Buffer) -> None:
        """Send the previous part as a chunk, and hold this one."""
        if number < self._number or self._session_url is None:
            return
        if number > self._number + 1:
            raise FileIOError(
                f"Part {number} of {self._name!r} came after part {self._number}. This store takes parts one at a time. Send them in order."
            )
        if number == self._number + 1 and number > 1:
            if not self._held or len(self._held) % CHUNK_BYTES_MULTIPLE:
                raise FileIOError(
                    f"Part {self._number} of {self._name!r} has {len(self._held)} bytes. All but the last need a multiple of 256 KiB."
                )
            try:
                self._backend._read(self._name, self._send_held)
            except ConditionFailed:
                self._session_url = None
                return
            except NotFound as error:
                raise UploadLost(f"The upload of {self._name!r} no longer exists. Nothing was written. Write it again.") from error
            self._offset += len(self._held)
        self._number = number
        self._held = data if isinstance(data, bytes) else bytes(data)

    def _send_held(self) -> None:
        end = self._offset + len(self._held)
        reached = self._offset
        while reached < end:
            now = bytes_reached(self._chunk(self._held[reached - self._offset :], f"bytes {reached}-{end - 1}/*"))
            if now <= reached:
                raise Unavailable(f"The store took no byte of {self._name!r} after {reached}. Send the part again.")
            reached = now
        self._crc32c = crc32c(self._held, self._crc32c)

    def complete(self) -> PutOutcome:
        """Send the last chunk."""
        if self._session_url is None:
            return PreconditionFailed(None)
        try:
            return self._backend._write(self._name, Overwrite(), self._send_last)
        except BucketNotFound:
            raise
        except NotFound:
            return PreconditionFailed(None)

    def _send_last(self) -> PutOutcome:
        total = self._offset + len(self._held)
        hashed = crc32c_header(crc32c(self._held, self._crc32c))
        reached = self._offset
        while True:
            content = f"bytes {reached}-{total - 1}/{total}" if reached < total else f"bytes */{total}"
            response = self._chunk(self._held[reached - self._offset :], content, hashed)
            if response.status_code != 308:
                break
            now = bytes_reached(response)
            if now <= reached:
                return OutcomeUnknown(Unavailable(f"The store took no byte of {self._name!r} after {reached}."))
            reached = now
        resource = response.json()
        if "generation" not in resource:
            return PreconditionFailed(None)  # the read-back decides
        if int(resource["size"]) != total:
            raise FileIOError(
                f"{self._name!r} has {resource['size']} bytes in the store, but {total} were sent. Delete it and write it again."
            )
        return Written(Version(resource["generation"]), milliseconds(datetime.fromisoformat(resource["updated"])))

    def _chunk(self, data: bytes, content_range: str, headers: Mapping[str, str] | None = None) -> Any:
        backend = self._backend
        sent = {"Content-Range": content_range, "Content-Type": CONTENT_TYPE, **backend._key_headers, **(headers or {})}
        return backend._session.request("PUT", self._session_url, data=data, headers=sent, timeout=backend._timeout, allow_redirects=False)

    def abort(self) -> None:
        """Cancel the session."""
        if self._session_url is None:
            return

        def cancel() -> None:
            try:
                self._backend._session.request("DELETE", self._session_url, timeout=self._backend._timeout)
            except Refused as refused:
                if refused.status != 404:
                    raise

        self._backend._read(self._name, cancel)
        self._session_url = None


__all__ = ["CHUNK_BYTES_MULTIPLE", "CONTENT_TYPE", "ResumableUpload"]
