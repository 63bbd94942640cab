"""Complete heads for the SDK of S3, whose connections read the head of `100 Continue` themselves. See `fileio.response_heads`."""

from __future__ import annotations

import functools
from functools import cache
from typing import Any

from fileio.errors import MissingDependency
from fileio.response_heads import CutHead, whole_pool, whole_response


def insist_on_whole_heads(client: Any) -> None:
    """Let a new client of the SDK accept only complete heads. Raises MissingDependency when the SDK no longer allows it."""
    import botocore

    try:
        session = client._endpoint.http_session
        pools = session._pool_classes_by_scheme
        session._manager.pool_classes_by_scheme = pools
        pools.update({scheme: _patient_pool(pool_class) for scheme, pool_class in pools.items()})
    except AttributeError as error:
        raise MissingDependency(
            f"s3:// does not know how botocore {botocore.__version__} makes its connections ({error}). Install an older one."
        ) from error


@cache
def _patient_pool(pool_class: Any) -> Any:
    """Pools of the SDK whose connections refuse every cut head."""
    whole = whole_pool(pool_class)

    class PatientConnection(whole.ConnectionCls):  # type: ignore[misc, name-defined]
        response_class: Any

        def _consume_headers(self, fp: Any) -> None:
            """Read what follows `100 Continue`. The SDK would wait without end for the rest of a head that was cut."""
            line = b""
            while line not in (b"\r\n", b"\n"):
                line = fp.readline()
                if line[-1:] != b"\n":
                    raise CutHead("the connection ended within the head that says 100 Continue")

        def _handle_expect_response(self, message_body: Any) -> None:
            """Read an answer that comes instead of `100 Continue`, for which the SDK has a separate class."""
            super()._handle_expect_response(message_body)
            early: Any = self.response_class
            if isinstance(early, functools.partial):
                self.response_class = functools.partial(whole_response(early.func), **early.keywords)

    class PatientPool(whole):  # type: ignore[misc, valid-type]
        ConnectionCls = PatientConnection

    return PatientPool


__all__ = ["insist_on_whole_heads"]
