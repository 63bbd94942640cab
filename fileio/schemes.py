"""URL schemes: the built-in ones, those that a third party registers, and the way from a URL to a backend.

A third party registers a scheme by an entry point of the group `objcat.fileio`. Its name is the scheme; it loads to a `Scheme`.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol
from urllib.parse import urlsplit

from fileio.contract import Backend, check_key
from fileio.errors import InvalidConfig, MissingDependency
from fileio.options import nearest, parse_options, unquote_path
from fileio.wrappers import PrefixedBackend

ENTRY_POINT_GROUP = "objcat.fileio"


class Scheme(Protocol):
    """How one URL scheme is opened. An entry point of the group `objcat.fileio` must load to such an object."""

    @property
    def options_class(self) -> type[Any]:
        """The class of the options: a frozen dataclass (see `fileio.options`)."""

    @property
    def path_is_root(self) -> bool:
        """Whether the whole path of the URL is the root, as for `file:`. Otherwise the URL's host is the bucket."""

    def open(self, root: str, options: Any) -> Backend:
        """A backend over the whole bucket or root, with parsed options."""


@dataclass(frozen=True, slots=True)
class BuiltinScheme:
    """A scheme of this package. Its module is imported when it is first opened."""

    module: str
    options_name: str
    open_name: str
    path_is_root: bool = False

    @property
    def options_class(self) -> type[Any]:
        """The options class of the scheme. Imports its module."""
        return getattr(importlib.import_module(self.module), self.options_name)  # type: ignore[no-any-return]

    def open(self, root: str, options: Any) -> Backend:
        """The backend of the scheme, over the whole bucket or root. Imports its module."""
        opener: Callable[[str, Any], Backend] = getattr(importlib.import_module(self.module), self.open_name)
        return opener(root, options)


_BUILTIN: Mapping[str, Scheme] = {
    "memory": BuiltinScheme("fileio.memory", "MemoryOptions", "open_memory"),
    "file": BuiltinScheme("fileio.local.backend", "LocalOptions", "open_local", path_is_root=True),
    "s3": BuiltinScheme("fileio.s3.backend", "S3Options", "open_s3"),
    "gs": BuiltinScheme("fileio.gcs.backend", "GCSOptions", "open_gcs"),
    "az": BuiltinScheme("fileio.azure.backend", "AzureOptions", "open_azure"),
}
SCHEME = re.compile(r"^([a-z][a-z0-9+.-]*):", re.IGNORECASE)


@cache
def _third_party() -> Mapping[str, importlib.metadata.EntryPoint]:
    return {point.name: point for point in importlib.metadata.entry_points(group=ENTRY_POINT_GROUP)}


def scheme_names() -> list[str]:
    """The names of all schemes: first the built-in ones, then those of third parties."""
    return [*_BUILTIN, *_third_party()]


def scheme_of(url: str) -> tuple[str, Scheme]:
    """The name and the scheme of a URL. A bare path has the scheme `file`.

    Raises:
        InvalidConfig: There is no such scheme. The message names the nearest one.
        MissingDependency: The backend of a third party cannot be imported.
    """
    found = SCHEME.match(url)
    name = found.group(1).lower() if found else "file"
    if name in _BUILTIN:
        return name, _BUILTIN[name]
    if name in _third_party():
        point = _third_party()[name]
        try:
            return name, point.load()
        except ImportError as error:
            raise MissingDependency(
                f"The storage backend {point.value!r} for {name + ':'!r} cannot be imported: {error}. Install what it needs."
            ) from error
    # An unknown scheme is not read as a directory. Otherwise a typing error would create a lake on the local disk.
    path = "" if found is None or url.startswith("//", found.end()) else f" If it is a path, write {shown_url('./' + url)!r}."
    hint = nearest(name, scheme_names())
    raise InvalidConfig(f"There is no storage backend for {name + ':'!r} in the URL {shown_url(url)!r} ({hint}).{path}")


def open_backend(url: str, options: Mapping[str, Any]) -> Backend:
    """The backend of the store at `url`, limited to the prefix in the URL. Sends no request.

    Raises:
        InvalidConfig: The URL or an option is wrong.
        MissingDependency: The library of the scheme is not installed.
    """
    _, scheme = scheme_of(url)
    root, prefix = split_url(url)
    backend = scheme.open(root, parse_options(scheme.options_class, options, where=shown_url(url)))
    return PrefixedBackend(backend, prefix) if prefix else backend


def split_url(url: str) -> tuple[str, str]:
    """The root and the prefix of a URL.

    The path of a URL is percent-encoded: in a prefix, `?`, `#` and `%` are written as `%3F`, `%23` and `%25`.

    Returns:
        The bucket and the key prefix. For schemes with `path_is_root`, the whole path and no prefix.

    Raises:
        InvalidConfig: The bucket is missing, or the URL holds credentials, a query or a fragment.
        InvalidKey: The prefix is not a valid key.
    """
    name, scheme = scheme_of(url)
    if scheme.path_is_root:
        path = url if not SCHEME.match(url) else unquote_path(url.split(":", 1)[1])
        path = re.sub(r"^//(localhost)?(?=/)", "", path)
        if not path or path.startswith("//"):
            raise InvalidConfig(f"{shown_url(url)!r} names no directory. Write file:/absolute/path or a plain path.")
        return path, ""
    if not SCHEME.match(url):
        raise InvalidConfig(f"{shown_url(url)!r} is not a URL. Write {name}://bucket/prefix.")
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise InvalidConfig(f"{shown_url(url)!r} is not a URL ({error}). Write {name}://bucket/prefix.") from error
    if "@" in parts.netloc or ":" in parts.netloc:
        raise InvalidConfig(f"{shown_url(url)!r} has credentials in the URL. Pass them as options instead.")
    if parts.query or parts.fragment:
        raise InvalidConfig(
            f"{shown_url(url)!r} has a query or fragment. Pass these settings as options instead. In a prefix, write ? as %3F and # as %23."
        )
    root = parts.netloc or ("default" if name == "memory" else "")
    if not root:
        raise InvalidConfig(f"{shown_url(url)!r} names no bucket. Write {name}://bucket/prefix.")
    prefix = unquote_path(parts.path).strip("/")
    if prefix:
        check_key(prefix)
    return root, prefix


def shown_url(url: str) -> str:
    """The URL without anything that may be a secret."""
    return re.sub(r"//(?:[^/@]*@|[^/:]*:.*@)", "//***@", re.split(r"[?#]", url, maxsplit=1)[0])


__all__ = ["ENTRY_POINT_GROUP", "SCHEME", "Scheme", "open_backend", "scheme_names", "scheme_of", "shown_url", "split_url"]
