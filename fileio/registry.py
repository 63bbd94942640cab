"""`open_store` opens a store by its URL and options, `open_beside` another one with the options of the first.

`describe_store` describes a store for another process. See `fileio.schemes`.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import Any

from fileio.contract import check_key
from fileio.env import Env
from fileio.errors import InvalidConfig, Unsupported
from fileio.options import parse_options, quote_path, unquote_path
from fileio.schemes import SCHEME, scheme_names, scheme_of, shown_url, split_url
from fileio.store import FileIO, StoreDescription
from fileio.wrappers import PrefixedBackend
from fileio.write_outcomes import RetryPolicy


def open_store(
    url: str | os.PathLike[str], options: Mapping[str, Any] | None = None, *, env: Env | None = None, policy: RetryPolicy | None = None
) -> FileIO:
    """Open the store at a URL. Sends no request.

    Args:
        url: `memory:`, `file:/path` or a bare path, `s3://bucket/prefix`, `gs://bucket/prefix` or `az://container/prefix`.
        options: Options of the scheme, as text or typed values. See the options class of the scheme.
        env: Clock, randomness and threads. The default is those of the system.
        policy: Limits of retries. The default is `RetryPolicy()`.

    Returns:
        The opened store.

    Raises:
        InvalidConfig: The URL or an option is wrong.
        MissingDependency: The library of the scheme is not installed.
    """
    return describe_store(url, options).open(env=env, policy=policy)


def describe_store(url: str | os.PathLike[str], options: Mapping[str, Any] | None = None) -> StoreDescription:
    """Describe the store at a URL: check the options and wrap the secrets. Sends no request.

    A bare path may begin with `~`, and becomes absolute. As text, a path with a colon in its first name must begin with `./`.

    Args:
        url: As in `open_store`.
        options: As in `open_store`.

    Returns:
        The description. It also holds every option that is marked `carried`: its value belongs to the process that describes.

    Raises:
        InvalidConfig: The URL or an option is wrong.
        MissingDependency: The library of the scheme is not installed.
    """
    place: object = url
    text: object = os.fspath(place) if isinstance(place, (str, os.PathLike)) else None
    if not isinstance(text, str):
        raise InvalidConfig(f"A {type(url).__name__} is not the place of a store. Pass a URL such as 's3://bucket/prefix', or a path.")
    if isinstance(place, os.PathLike) and (found := SCHEME.match(text)) and found[1].lower() not in scheme_names():
        # A directory may have a colon in its name. A path that begins with a known scheme was a URL before it became a path.
        text = f"./{text}"
    given: object = options
    if given is not None and not isinstance(given, Mapping):
        raise InvalidConfig(f"The options of {shown_url(text)} are a {type(options).__name__}. Pass a dict such as {{'region': '...'}}.")
    name, scheme = scheme_of(text)
    if name == "file":
        path, _ = split_url(text)
        text = "file://" + quote_path(os.path.abspath(path if SCHEME.match(text) else os.path.expanduser(path)))
    split_url(text)
    checked = parse_options(scheme.options_class, options or {}, where=shown_url(text))
    carried = [f.name for f in dataclasses.fields(scheme.options_class) if f.metadata.get("carried")]
    return StoreDescription(text, {key: getattr(checked, key) for key in [*(options or {}), *carried]})


def open_beside(fileio: FileIO, url: str) -> FileIO:
    """The store at another URL of the same scheme, opened with the options of a store, with its own metrics. Sends no request.

    It uses the connections of that store where the URL is in the same bucket.

    Args:
        fileio: The opened store.
        url: As in `open_store`, with a scheme.

    Returns:
        The other store.

    Raises:
        InvalidConfig: The URL is wrong, or of another scheme.
        Unsupported: The store is hand-made, and the URL is outside of its bucket.
    """
    own, theirs = (scheme_of(one)[0] for one in (fileio.url, url))
    if own != theirs:
        raise InvalidConfig(f"{shown_url(url)!r} is not in a store like {fileio.url}. Give a URL that begins with {own}:.")
    known = fileio._description
    description = None if known is None else StoreDescription(url, known.options)
    root = fileio._bare
    while isinstance(root, PrefixedBackend):
        root = root.inner
    base, wanted = root.url.rstrip("/"), url.rstrip("/")
    if wanted == base or wanted.startswith(f"{base}/"):
        prefix = unquote_path(wanted[len(base) + 1 :])
        backend = PrefixedBackend(root, check_key(prefix)) if prefix else root
        return FileIO(backend, env=fileio.env, policy=fileio._policy, description=description)
    if description is None:
        raise Unsupported(f"{fileio.url} was not opened from a URL, so {shown_url(url)!r} cannot be opened with its options.")
    return description.open(env=fileio.env, policy=fileio._policy)


__all__ = ["describe_store", "open_beside", "open_store"]
