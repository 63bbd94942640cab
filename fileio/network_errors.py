"""Why a request did not reach a store, read from the errors that an SDK and its HTTP library wrap."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from typing import Any

_CONNECTING = frozenset({"NewConnectionError", "NameResolutionError", "ConnectTimeoutError", "ConnectTimeout", "ProxyError"})
"""Error classes of urllib3, and of libraries on top of it, for a connection that was never made."""

UNREADABLE = (LookupError, TypeError, ValueError, AttributeError)
"""What an SDK raises for an answer that is incomplete or cannot be read."""


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """The error and all errors that it wraps, outermost first."""
    pending: list[Any] = [error]
    seen: set[int] = set()
    while pending:
        one = pending.pop(0)
        if isinstance(one, BaseException) and id(one) not in seen:
            seen.add(id(one))
            yield one
            pending += [one.__cause__, one.__context__, getattr(one, "reason", None), getattr(one, "inner_exception", None), *one.args]
            pending += getattr(one, "kwargs", {}).values()


def is_untrusted(error: BaseException) -> bool:
    """Whether the server's certificate was refused. The request was certainly not sent."""
    return any(isinstance(cause, ssl.SSLCertVerificationError) for cause in causes(error))


def why_unreachable(error: BaseException) -> str | None:
    """Why there was no connection, in a few words; None when there was one, or when the reason is not known."""
    found = list(causes(error))
    for cause in found:
        if isinstance(cause, socket.gaierror):
            return "its name is not known"
        if isinstance(cause, ConnectionRefusedError):
            return "it refuses connections"
    for cause in found:
        if type(cause).__name__ in _CONNECTING:
            return "the proxy does not let us" if type(cause).__name__ == "ProxyError" else "no connection came about in time"
    return None


__all__ = ["UNREADABLE", "causes", "is_untrusted", "why_unreachable"]
