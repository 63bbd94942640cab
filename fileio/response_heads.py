"""HTTP connections that accept only answers with a complete head.

Python's `http.client` takes the end of a connection for the end of a head, and the SDKs rely on it. An answer that was cut would have
fewer headers, or half of one, and pass for a whole one. A connection of `whole_pool` raises `CutHead` instead. An SDK reports it as a
broken connection: the outcome of the request is unknown. Only stores that use these classes are affected.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from http.client import HTTPException, HTTPResponse
from typing import Any

_INTERIM = (b"HTTP/1.1 1", b"HTTP/1.0 1")
"""The beginning of the head of an interim answer."""


class CutHead(ConnectionResetError, HTTPException):
    """The connection ended within the head of an answer."""


class _Head:
    """The lines of a head. A line without an end raises CutHead. Only lines are read through this."""

    __slots__ = ("stream",)

    def __init__(self, stream: Any) -> None:
        self.stream = stream

    def readline(self, bytes_max: int) -> bytes:
        line: bytes = self.stream.readline(bytes_max)
        if line[-1:] != b"\n" and len(line) < bytes_max:
            raise CutHead("the connection ended within the head of the answer")
        return line

    def close(self) -> None:
        self.stream.close()


class WholeHead:
    """A mixin for a class of responses. It raises CutHead when the connection ends within the head."""

    fp: Any

    def begin(self) -> None:
        """Read the head. A head that arrived in one piece, as most do, is not read line by line."""
        arrived = self.fp.peek()
        if b"\r\n\r\n" in arrived and not arrived.startswith(_INTERIM):
            super().begin()  # type: ignore[misc]
            return
        self.fp = head = _Head(self.fp)
        try:
            super().begin()  # type: ignore[misc]
        finally:
            if self.fp is head:
                self.fp = head.stream


@cache
def whole_response(response_class: type[HTTPResponse]) -> type[HTTPResponse]:
    """The same class of responses, with WholeHead in front."""

    class WholeHeadResponse(WholeHead, response_class):  # type: ignore[misc, valid-type]
        pass

    return WholeHeadResponse


@cache
def whole_pool(pool_class: Any) -> Any:
    """The same class of urllib3 connection pools, with complete heads."""
    if issubclass(pool_class.ConnectionCls.response_class, WholeHead):
        return pool_class

    class WholeHeadConnection(pool_class.ConnectionCls):  # type: ignore[misc]
        response_class = whole_response(pool_class.ConnectionCls.response_class)

    class WholeHeadPool(pool_class):  # type: ignore[misc]
        ConnectionCls = WholeHeadConnection

    return WholeHeadPool


def whole_pools(pool_classes: Mapping[str, Any]) -> dict[str, Any]:
    """As `whole_pool`, for pools by scheme, as urllib3's pool managers hold them."""
    return {scheme: whole_pool(pool_class) for scheme, pool_class in pool_classes.items()}


@cache
def whole_head_adapter() -> type[Any]:
    """An `HTTPAdapter` of requests whose answers have complete heads."""
    from requests.adapters import HTTPAdapter

    class WholeHeadAdapter(HTTPAdapter):
        def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
            super().init_poolmanager(*args, **kwargs)
            self.poolmanager.pool_classes_by_scheme = whole_pools(self.poolmanager.pool_classes_by_scheme)

        def proxy_manager_for(self, proxy: Any, **kwargs: Any) -> Any:
            manager = super().proxy_manager_for(proxy, **kwargs)
            manager.pool_classes_by_scheme = whole_pools(manager.pool_classes_by_scheme)
            return manager

    return WholeHeadAdapter


__all__ = ["CutHead", "WholeHead", "whole_head_adapter", "whole_pool", "whole_pools", "whole_response"]
