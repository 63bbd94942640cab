"""Uploads in parts to `gs://`: resumable sessions, one chunk after another. See `fileio.gcs.backend` for why."""

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
    """What an upload needs of the backend that began it."""

    _timeout: Any

    @property
    def _session(self) -> Any:
        """Of the SDK: what it sends is authorized."""

    @property
    def _key_headers(self) -> Mapping[str, str]:
        """Headers of a key that the customer holds, if any."""

    def _read(self, key: str, request: Callable[[], R]) -> R:
        """Send a request that changes nothing when it is sent again. Raises typed errors."""

    def _write(self, key: str, mode: PutMode, request: Callable[[], PutOutcome]) -> PutOutcome:
        """Send a request that creates an object. Raises typed errors that certainly had no effect."""


class ResumableUpload(Upload):
    """A resumable session. The newest part is kept back until the next one or `complete`: the last chunk must say that it is the last.

    A chunk whose answer was lost is sent again from its beginning: the store ignores bytes at offsets that it already has, and says how far
    it got. A session that has completed, and forgets it, answers 404: the read-back of the object decides then.
    session_url None: the condition had already failed at the start; parts go nowhere, and `complete` answers Conflict.
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
        if number < self._number or self._session_url is None:
            return
        if number > self._number + 1:
            raise FileIOError(
                f"part {number} of {self._name!r} came after part {self._number}: this store takes parts one at a time, in order"
            )
        if number == self._number + 1 and number > 1:
            if not self._held or len(self._held) % CHUNK_BYTES_MULTIPLE:
                raise FileIOError(
                    f"part {self._number} of {self._name!r} has {len(self._held)} bytes: all but the last need a multiple of 256 KiB"
                )
            try:
                self._backend._read(self._name, self._send_held)
            except ConditionFailed:
                self._session_url = None
                return
            except NotFound as error:
                raise UploadLost(f"the upload of {self._name!r} no longer exists: write it again") from error
            self._offset += len(self._held)
        self._number = number
        self._held = data if isinstance(data, bytes) else bytes(data)

    def _send_held(self) -> None:
        end = self._offset + len(self._held)
        reached = self._offset
        while reached < end:
            now = bytes_reached(self._chunk(self._held[reached - self._offset :], f"bytes {reached}-{end - 1}/*"))
            if now <= reached:
                raise Unavailable(f"the store took no byte of {self._name!r} after {reached}: send the part again")
            reached = now
        self._crc32c = crc32c(self._held, self._crc32c)

    def complete(self) -> PutOutcome:
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
                return OutcomeUnknown(Unavailable(f"the store took no byte of {self._name!r} after {reached}"))
            reached = now
        resource = response.json()
        if "generation" not in resource:
            return PreconditionFailed(None)  # the read-back tells
        if int(resource["size"]) != total:
            raise FileIOError(
                f"{self._name!r} has {resource['size']} bytes in the store, but {total} were sent: delete it and write it again"
            )
        return Written(Version(resource["generation"]), milliseconds(datetime.fromisoformat(resource["updated"])))

    def _chunk(self, data: bytes, content_range: str, headers: Mapping[str, str] | None = None) -> Any:
        backend = self._backend
        sent = {"Content-Range": content_range, "Content-Type": CONTENT_TYPE, **backend._key_headers, **(headers or {})}
        return backend._session.request("PUT", self._session_url, data=data, headers=sent, timeout=backend._timeout, allow_redirects=False)

    def abort(self) -> None:
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
