"""`RequestGate`: what every request passes before its route, and every answer behind it.

Limits of requests and of their bodies, the bearer token, refusals of changes, errors in the shape of the specification, and metrics.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
from urllib.parse import quote

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fileio.env import Env
from fileio.errors import FileIOError, Throttled, Unavailable
from objcat.errors import ObjcatError, PluginFailed
from objcat.serve.answers import (
    Refusal,
    bad_request,
    internal,
    no_such_path,
    not_authorized,
    overloaded,
    read_only,
    refusal_response,
    store_unavailable,
    unsupported,
)
from objcat.serve.request_metrics import RequestMetrics
from objcat.serve.settings import ServerSettings

logger = logging.getLogger("objcat.serve")

ROUTE = "objcat.route"
"""The key of a scope under which a route leaves its pattern for the metrics."""
OPEN_PATHS = frozenset({"/health", "/health/ready"})
"""What answers without a token and beyond the limit of requests, so that a balancer always learns the truth."""
_READING_POSTS = {"plan": "planning of scans by the server", "tasks": "planning of scans by the server", "sign": "signing of requests"}


class RequestGate:
    """An ASGI app around the routes.

    Args:
        app: the routes.
        settings: limits and tokens.
        metrics: where answers are counted.
        env: the clock.
    """

    def __init__(self, app: ASGIApp, settings: ServerSettings, metrics: RequestMetrics, env: Env) -> None:
        self._app = app
        self._settings = settings
        self._metrics = metrics
        self._env = env
        self._tokens = tuple(token.reveal().encode() for token in settings.tokens)
        self.under_way = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        began_s = self._env.monotonic_s()
        answer = _Answer(send)
        # Routes match the path as it was sent. So an encoded slash is part of a name, and never divides a path.
        raw = scope.get("raw_path") or quote(scope["path"]).encode()
        scope = {**scope, "path": raw.partition(b"?")[0].decode("latin-1"), "app": self._app, ROUTE: "other"}
        self.under_way += 1
        try:
            await self._answer(scope, receive, answer)
        finally:
            self.under_way -= 1
            self._metrics.note_request(scope[ROUTE], _method(scope), answer.status, self._env.monotonic_s() - began_s)

    async def _answer(self, scope: Scope, receive: Receive, answer: _Answer) -> None:
        try:
            self._check(scope)
            after = await self._after_body(receive)
            self._check_method(scope)
            async with asyncio.timeout(self._settings.request_s):
                await self._app(scope, after, answer)
                return
        except Exception as error:
            if answer.status:
                logger.warning("An answer to %s ended early: %s", scope["method"], type(error).__name__)
                raise
            response = refusal_response(_refusal_of(error, scope))
        await response(scope, receive, answer)

    def _check(self, scope: Scope) -> None:
        """Raises Refusal for too many requests, and without the token."""
        if scope["path"] in OPEN_PATHS:
            return
        if self.under_way > self._settings.requests_max:
            raise overloaded()
        if self._tokens and not self._is_authorized(Request(scope).headers.get("authorization", "")):
            raise not_authorized()

    def _is_authorized(self, header: str) -> bool:
        kind, _, given = header.partition(" ")
        token = given.strip().encode()
        # All tokens are compared, so the time tells nothing of which one was near.
        equal = [hmac.compare_digest(token, known) for known in self._tokens]
        return kind.lower() == "bearer" and any(equal)

    async def _after_body(self, receive: Receive) -> Receive:
        """Read the body away. No answer depends on it, but many clients read no answer before they have sent it. Raises Refusal."""
        try:
            async with asyncio.timeout(self._settings.body_s):
                await self._skip_body(receive)
        except TimeoutError as error:
            raise Refusal(408, "BadRequestException", f"The body was not sent within {self._settings.body_s} seconds.") from error
        done: Message = {"type": "http.request", "body": b"", "more_body": False}

        async def read() -> Message:
            return done

        return read

    async def _skip_body(self, receive: Receive) -> None:
        size = 0
        while True:
            message = await receive()
            if message["type"] != "http.request":
                return
            size += len(message.get("body", b""))
            if size > self._settings.body_bytes_max:
                raise Refusal(413, "BadRequestException", f"The body has more than {self._settings.body_bytes_max} bytes.")
            if not message.get("more_body", False):
                return

    def _check_method(self, scope: Scope) -> None:
        """Refuse what would change something: every method but GET and HEAD, except reports that are ignored anyway."""
        path, method = scope["path"], scope["method"]
        last = path.rstrip("/").rpartition("/")[2]
        if (
            method in ("GET", "HEAD")
            or not path.startswith("/v1/")
            or path == "/v1/oauth/tokens"
            or (method == "POST" and last == "metrics")
        ):
            return
        scope[ROUTE] = "refused"
        if method == "POST" and last in _READING_POSTS:
            raise unsupported(_READING_POSTS[last])
        raise read_only(method, path)


class _Answer:
    """Sends an answer, and remembers its status; 0 before it begins."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.status = 0

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
        await self._send(message)


def _refusal_of(error: Exception, scope: Scope) -> Refusal:
    """What a client is told of an error. Only a refusal has a text for it; the log has the others."""
    if isinstance(error, Refusal):
        return error
    if isinstance(error, HTTPException):
        if error.status_code == 405:
            return Refusal(405, "BadRequestException", f"{scope['method']} is not a method of this path.")
        return no_such_path(scope["path"]) if error.status_code == 404 else bad_request("The request is not valid.")
    if isinstance(error, (Unavailable, Throttled, TimeoutError, PluginFailed)):
        logger.warning("%s was not answered in time: %s: %s", scope[ROUTE], type(error).__name__, error)
        return store_unavailable()
    if isinstance(error, (ObjcatError, FileIOError)):
        logger.error("%s failed: %s: %s", scope[ROUTE], type(error).__name__, error)
    else:
        logger.error("%s failed", scope[ROUTE], exc_info=error)
    return internal()


def _method(scope: Scope) -> str:
    """The method for the metrics, which have no more values than HTTP has methods."""
    method: str = scope["method"]
    return method if method in ("GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS") else "other"
