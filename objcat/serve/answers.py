"""Answers of the REST catalog as JSON, and the refusals in the shape that the specification has for errors."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.responses import Response

NAME_CHARACTERS_SHOWN = 80
"""The most characters of a name of a request that a message repeats."""


class Refusal(Exception):
    """An answer that is an error. The client sees its status, its type and its message.

    Args:
        status: the HTTP status.
        kind: the type by which clients tell errors apart, such as `NoSuchTableException`.
        message: for people.
        headers: further headers of the answer.
    """

    def __init__(self, status: int, kind: str, message: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.message = message
        self.headers = headers or {}


def json_response(value: Any, *, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """A value as JSON. A `msgspec.Raw` in it is inserted as it is."""
    return Response(msgspec.json.encode(value), status_code=status, media_type="application/json", headers=headers)


def refusal_response(refusal: Refusal) -> Response:
    """An error as the specification has it."""
    error = {"message": refusal.message, "type": refusal.kind, "code": refusal.status}
    return json_response({"error": error}, status=refusal.status, headers=refusal.headers)


def bad_request(message: str) -> Refusal:
    """The request has a wrong form."""
    return Refusal(400, "BadRequestException", message)


def not_authorized() -> Refusal:
    """The bearer token is missing or wrong."""
    message = "This catalog needs a bearer token. Set the `token` of the client to the one that the operator of `objcat serve` gave you."
    return Refusal(401, "NotAuthorizedException", message, {"WWW-Authenticate": "Bearer"})


def read_only(method: str, path: str) -> Refusal:
    """A request that would change something."""
    return Refusal(
        403,
        "ForbiddenException",
        f"Nothing was changed: {method} {shown(path)} is refused, because `objcat serve` is a read-only view of tables that objcat writes. "
        "Write with objcat: objcat.connect(url).table(name).upsert(rows) in Python, or the SQL of objcat in Spark.",
    )


def no_such_namespace(name: str) -> Refusal:
    """There is no namespace of that name."""
    return Refusal(404, "NoSuchNamespaceException", f"There is no namespace {shown(name)!r} in this lake.")


def no_such_table(name: str) -> Refusal:
    """There is no table of that name."""
    return Refusal(404, "NoSuchTableException", f"There is no table {shown(name)!r} in this lake.")


def no_mirror(name: str) -> Refusal:
    """The table exists, but has no metadata of Iceberg."""
    return Refusal(
        404,
        "NoSuchTableException",
        f"The objcat table {shown(name)!r} exists, but has no Iceberg mirror. Turn it on with "
        "table.set_properties({'mirrors': 'iceberg'}), and make it now with `objcat mirror` or table.maintenance.mirror().",
    )


def no_mirror_yet(name: str) -> Refusal:
    """The server is about to make the metadata of Iceberg of a table, or cannot."""
    message = (
        f"The metadata of the objcat table {shown(name)!r} is not there yet: the server makes it at the first load. Try again in some "
        "seconds. If this goes on, the log of the server says why."
    )
    return Refusal(503, "ServiceUnavailableException", message, {"Retry-After": "5"})


def unusable_mirror(name: str) -> Refusal:
    """There is metadata of Iceberg that must not be served."""
    return Refusal(
        500,
        "InternalServerError",
        f"The Iceberg mirror of {shown(name)!r} is damaged, or something other than objcat wrote to it. The table itself is not affected. "
        "Run `objcat mirror` for it; the log of the server names the object.",
    )


def unsupported(what: str) -> Refusal:
    """An operation that does not change anything, and that this server does not offer."""
    return Refusal(406, "UnsupportedOperationException", f"`objcat serve` does not offer {what}. Nothing was changed.")


def no_such_path(path: str) -> Refusal:
    """The path is none of the specification's."""
    return Refusal(404, "NotFoundException", f"There is nothing at {shown(path)}. The Iceberg REST catalog begins at /v1/config.")


def overloaded() -> Refusal:
    """Too many requests at once."""
    message = "The server has as many requests at once as it takes. Try again in a second."
    return Refusal(503, "SlowDownException", message, {"Retry-After": "1"})


def store_unavailable() -> Refusal:
    """The store did not answer, or not in time. Details are in the log of the server, since they may name things of the operator."""
    message = "The store of the lake did not answer in time. Nothing was changed. Try again; the log of the server has the reason."
    return Refusal(503, "ServiceUnavailableException", message, {"Retry-After": "1"})


def internal() -> Refusal:
    """A failure whose reason is in the log of the server alone."""
    return Refusal(500, "InternalServerError", "The server could not answer. The reason is in its log.")


def shown(name: str) -> str:
    """A name for a message. A long one is cut."""
    return name if len(name) <= NAME_CHARACTERS_SHOWN else f"{name[:NAME_CHARACTERS_SHOWN]}..."
