"""`AzureUpload`: an upload to `az://` as a list of uncommitted blocks. `fileio.azure.backend` has the reasons."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from fileio.azure.errors import ask_service, error_code
from fileio.contract import WRITE_ID, Buffer, OutcomeUnknown, Overwrite, PreconditionFailed, PutMode, PutOutcome, Upload
from fileio.env import default_env
from fileio.errors import FileIOError, UploadLost

if TYPE_CHECKING:
    from azure.core.exceptions import AzureError
    from azure.storage.blob import BlobClient


class BlockClient(Protocol):
    """What an upload needs of the backend that started it."""

    _writing: dict[str, Any]

    def _blob(self, key: str) -> BlobClient:
        """The SDK's client of a blob."""

    def _conditions(self, mode: PutMode) -> Mapping[str, Any]:
        """The arguments of a request under `mode`."""

    def _mutate(self, what: str, key: str, mode: PutMode, call: Callable[[], Mapping[str, Any]]) -> PutOutcome:
        """One attempt of a write."""

    def _failure(self, error: AzureError, what: str, key: str) -> FileIOError:
        """The typed error for an error of the SDK."""


class AzureUpload(Upload):
    """Uncommitted blocks, and the list that makes them the object."""

    def __init__(self, backend: BlockClient, key: str, mode: PutMode, metadata: Mapping[str, str]) -> None:
        self._backend = backend
        self._key = key
        self._mode = mode
        self._metadata = dict(metadata)
        self._name = metadata.get(WRITE_ID) or default_env().new_id()
        self._numbers: set[int] = set()
        self._ambiguous = False

    def _block(self, number: int) -> str:
        return f"{self._name}-{number:05d}"  # Azure requires names of one length within a blob

    def put_part(self, number: int, data: Buffer) -> None:
        """`Put Block`."""
        backend = self._backend
        body: Any = data if isinstance(data, bytes) else memoryview(data).cast("B")
        blob = backend._blob(self._key)
        self._stage(number, lambda: blob.stage_block(self._block(number), body, length=len(body), **backend._writing))

    def copy_part(self, number: int, url: str, start: int, length: int, proof: Mapping[str, Any]) -> None:
        """`Put Block From URL`: the store reads the part from another object."""
        backend = self._backend
        blob = backend._blob(self._key)
        self._stage(number, lambda: blob.stage_block_from_url(self._block(number), url, start, length, **proof, **backend._writing))

    def _stage(self, number: int, call: Callable[[], Any]) -> None:
        from azure.core.exceptions import AzureError

        try:
            ask_service(call)
        except AzureError as error:
            if error_code(error) in ("InvalidBlobOrBlock", "InvalidBlockId"):
                # Block names of another program have another length. They are in the way until the key is written, or for a week.
                raise UploadLost(f"Another program's unfinished upload of {self._key!r} is in the way. Write it by put().") from None
            raise self._backend._failure(error, f"send part {number} of", self._key) from None
        self._numbers.add(number)

    def complete(self) -> PutOutcome:
        """`Put Block List`."""
        backend = self._backend
        blocks: list[Any] = [self._block(number) for number in sorted(self._numbers)]
        conditions = backend._conditions(self._mode)
        try:
            outcome = backend._mutate(
                "complete",
                self._key,
                self._mode,
                lambda: backend._blob(self._key).commit_block_list(blocks, metadata=self._metadata, **conditions, **backend._writing),
            )
        except UploadLost as error:
            # Any write to the key drops uncommitted blocks: an earlier completion of ours, or a competitor's write.
            if isinstance(self._mode, Overwrite) and not self._ambiguous:
                raise error from None
            return PreconditionFailed(None)
        self._ambiguous = self._ambiguous or isinstance(outcome, OutcomeUnknown)
        return outcome

    def abort(self) -> None:
        """Azure has no such request. Uncommitted blocks stay invisible until the next write to the key, or a week, drops them."""
        self._numbers.clear()
