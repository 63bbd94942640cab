"""`SettledUpload`: a multipart upload whose parts are retried and whose outcome is settled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from fileio.contract import Buffer, OutcomeUnknown, PreconditionFailed, PutOutcome, Upload, as_bytes
from fileio.errors import Throttled, UploadLost
from fileio.write_outcomes import Contradicted


class Settle(Protocol):
    """`FileIO`'s way to settle one write, its key, mode and write id included."""

    def __call__(self, attempt: Callable[[], PutOutcome], *, size: int | None, doubt: Exception | None) -> PutOutcome:
        """The settled outcome of `attempt`. See `fileio.write_outcomes.resolve_write_outcome`."""


class SettledUpload(Upload):
    """A multipart upload of `FileIO`. Parts are retried, and the write id settles the completion.

    Args:
        key: The key of the object.
        inner: The upload of the backend.
        retry: Repeats a call within the retry policy.
        settle: Settles the outcome of the completion.
    """

    def __init__(self, key: str, inner: Upload, *, retry: Callable[[Callable[[], None]], Any], settle: Settle) -> None:
        self._key = key
        self._inner = inner
        self._retry = retry
        self._settle = settle
        self._sizes: dict[int, int] = {}
        self._doubt: Exception | None = None

    def put_part(self, number: int, data: Buffer) -> None:
        """Send one part, with retries.

        Args:
            number: The number of the part, from 1, without gaps.
            data: Any bytes-like object.

        Raises:
            Unavailable: The store gave no answer.
            Throttled: The store asked for fewer requests.
            UploadLost: The upload is gone.
        """
        content = as_bytes(data)
        self._sizes[number] = len(content)
        self._retry(lambda: self._inner.put_part(number, content))

    def complete(self) -> PutOutcome:
        """Make the object visible under the mode of the upload. After `OutcomeUnknown` you may call it again.

        Returns:
            The settled outcome.

        Raises:
            UploadLost: The store no longer knows the upload. Nothing was written.
        """
        refused = False

        def attempt() -> PutOutcome:
            nonlocal refused
            outcome = self._inner.complete()
            refused = isinstance(outcome, PreconditionFailed)
            return outcome

        lost = f"The upload of {self._key!r} is gone. Nothing was written. Write the object again."
        try:
            outcome = self._settle(attempt, size=sum(self._sizes.values()), doubt=self._doubt)
        except Throttled as error:
            if not refused:
                raise
            raise UploadLost(lost) from error
        if refused and isinstance(outcome, OutcomeUnknown) and isinstance(outcome.cause, Contradicted):
            raise UploadLost(lost) from outcome.cause
        if isinstance(outcome, OutcomeUnknown):
            self._doubt = outcome.cause
        return outcome

    def abort(self) -> None:
        """Remove what was sent, with retries. Raises Unavailable when the store does not answer."""
        self._retry(self._inner.abort)
