"""`LocalUpload`: the parts of an upload to a `file:` store, written in order to one temporary file."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fileio.contract import Buffer, PreconditionFailed, PutMode, PutOutcome, Upload, Written
from fileio.errors import UploadLost
from fileio.local.files import Temporary, typed_errors


class LocalUpload(Upload):
    """Parts of one file, in order. Completing it links or renames the file to its key.

    Args:
        temporary: The file.
        mode: The condition.
        metadata: The metadata of the object.
        check: Raises BucketNotFound when the root is not the same directory as before.
        look: The failed condition, if any, and the time (ns) that the new version must be later than.
        place: Makes the sealed file the object.
    """

    def __init__(
        self,
        temporary: Temporary,
        mode: PutMode,
        metadata: Mapping[str, str],
        *,
        check: Callable[[], None],
        look: Callable[[str, PutMode], tuple[PreconditionFailed | None, int]],
        place: Callable[[Temporary, PutMode, Mapping[str, str]], PutOutcome],
    ) -> None:
        self._temporary = temporary
        self._mode = mode
        self._metadata = metadata
        self._check = check
        self._look = look
        self._place = place
        self._offsets = [0]
        self._written: Written | None = None
        self._aborted = False

    def put_part(self, number: int, data: Buffer) -> None:
        """Write the part to the file. Raises ValueError for a part out of order."""
        target = self._temporary.target
        if self._aborted or self._written is not None:
            raise UploadLost(f"The upload of {target!r} is over. Start another one.")
        if not 1 <= number <= len(self._offsets):
            raise ValueError(f"Part {number} of {target!r} came before part {len(self._offsets)}. Send parts in order.")
        offset = self._offsets[number - 1]
        end = offset + memoryview(data).nbytes
        if number < len(self._offsets) and self._offsets[number] != end:
            raise ValueError(f"Part {number} of {target!r} was sent again with another length. Send the same bytes.")
        with typed_errors(target):
            self._temporary.write(data, offset)
        if number == len(self._offsets):
            self._offsets.append(end)

    def complete(self) -> PutOutcome:
        """Seal the file and place it, under the condition."""
        if self._written is not None:
            return self._written
        if self._aborted:
            return PreconditionFailed(None)
        self._check()
        with typed_errors(self._temporary.target):
            refusal, floor_ns = self._look(self._temporary.target, self._mode)
            if refusal is not None:
                return refusal
            self._temporary.seal(self._metadata, later_than_ns=floor_ns)
            outcome = self._place(self._temporary, self._mode, self._metadata)
            if isinstance(outcome, Written):
                self._written = outcome
                self._temporary.discard()
            return outcome

    def abort(self) -> None:
        """Remove the file."""
        self._aborted = True
        with typed_errors(self._temporary.target):
            self._temporary.discard()
