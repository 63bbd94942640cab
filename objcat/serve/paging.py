"""Pages of a listing: how many names an answer has, and the token by which the next request goes on."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from objcat.serve.answers import bad_request

T = TypeVar("T")

PAGE_SIZE_MAX = 1000
"""The most names of a page."""


def page_of(items: Sequence[T], key: Callable[[T], str], query: Mapping[str, str]) -> tuple[Sequence[T], str | None]:
    """One page of a sorted listing, and the token of the next one.

    A token holds the last name of its page. So a page is right on every server, and names that come or go between two pages neither
    shift nor repeat others. Without `pageToken` and `pageSize` the page is the whole listing.

    Args:
        items: all of it, ascending by `key`.
        key: a text that no two items share.
        query: the parameters of the request.

    Raises:
        Refusal: a parameter is not valid.
    """
    token, size = query.get("pageToken"), query.get("pageSize")
    if token is None and size is None:
        return items, None
    limit = PAGE_SIZE_MAX if size is None else min(_page_size(size), PAGE_SIZE_MAX)
    after = _decoded(token) if token else None
    left = items if after is None else [item for item in items if key(item) > after]
    page = left[:limit]
    return page, _encoded(key(page[-1])) if len(left) > limit else None


def _page_size(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or len(text) > 9 or int(text) == 0:
        raise bad_request("pageSize is not a whole number above 0.")
    return int(text)


def _encoded(name: str) -> str:
    return base64.urlsafe_b64encode(name.encode()).decode().rstrip("=")


def _decoded(token: str) -> str:
    try:
        return base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True).decode()
    except (binascii.Error, ValueError) as error:
        raise bad_request("pageToken is not one that this catalog gave out. Begin the listing again.") from error
