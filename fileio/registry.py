"""From a URL and options to an opened store; schemes of third parties; picklable descriptions."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.metadata
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Protocol
from urllib.parse import urlsplit

from fileio.contract import Backend, check_key
from fileio.env import Env
from fileio.errors import InvalidConfig, MissingDependency
from fileio.options import nearest, parse_options, quote_path, redact, unquote_path
from fileio.store import FileIO
from fileio.wrappers import PrefixedBackend
from fileio.write_outcomes import RetryPolicy

ENTRY_POINT_GROUP = "objcat.fileio"


class Scheme(Protocol):
    """What an entry point of the group `objcat.fileio` must load to: how one URL scheme is opened.

    options_class: a frozen dataclass (see `fileio.options`). open: gets the bucket (the URL's host; the whole path for schemes that declare
    `path_is_root`) and the parsed options, and returns a backend over the whole bucket.
    """

    @property
    def options_class(self) -> type[Any]: ...

    @property
    def path_is_root(self) -> bool: ...

    def open(self, root: str, options: Any) -> Backend: ...


@dataclass(frozen=True, slots=True)
class BuiltinScheme:
    """A scheme of ours, imported when it is first opened."""

    module: str
    options_name: str
    open_name: str
    path_is_root: bool = False

    @property
    def options_class(self) -> type[Any]:
        return getattr(importlib.import_module(self.module), self.options_name)  # type: ignore[no-any-return]

    def open(self, root: str, options: Any) -> Backend:
        opener: Callable[[str, Any], Backend] = getattr(importlib.import_module(self.module), self.open_name)
        return opener(root, options)


_BUILTIN: Mapping[str, Scheme] = {
    "memory": BuiltinScheme("fileio.memory", "MemoryOptions", "open_memory"),
    "file": BuiltinScheme("fileio.local.backend", "LocalOptions", "open_local", path_is_root=True),
    "s3": BuiltinScheme("fileio.s3.backend", "S3Options", "open_s3"),
    "gs": BuiltinScheme("fileio.gcs.backend", "GCSOptions", "open_gcs"),
    "az": BuiltinScheme("fileio.azure.backend", "AzureOptions", "open_azure"),
}
_SCHEME = re.compile(r"^([a-z][a-z0-9+.-]*):", re.IGNORECASE)


@cache
def _third_party() -> Mapping[str, importlib.metadata.EntryPoint]:
    return {point.name: point for point in importlib.metadata.entry_points(group=ENTRY_POINT_GROUP)}


def scheme_of(url: str) -> tuple[str, Scheme]:
    """The name and the scheme of a URL. A bare path is `file:`. Raises InvalidConfig that names the nearest scheme."""
    found = _SCHEME.match(url)
    name = found.group(1).lower() if found else "file"
    if name in _BUILTIN:
        return name, _BUILTIN[name]
    if name in _third_party():
        point = _third_party()[name]
        try:
            return name, point.load()
        except ImportError as error:
            raise MissingDependency(f"the storage backend {point.value!r} for {name + ':'!r} cannot be imported: {error}") from error
    valid = [*_BUILTIN, *_third_party()]
    # It is not taken for a directory: who mistypes a scheme would have a lake on local disk.
    path = "" if found is None or url.startswith("//", found.end()) else f"; as a path write {_shown('./' + url)!r}"
    raise InvalidConfig(f"no storage backend for {name + ':'!r} in the URL {_shown(url)!r}: {nearest(name, valid)}{path}")


@dataclass(frozen=True, slots=True)
class StoreDescription:
    """A store as two plain values: opens it here or, pickled, in another process.

    url: without credentials, its path percent-encoded. options: as given, secrets wrapped in `Secret` (never shown, but carried by pickle:
    default credential chains are not carried, each process resolves its own).
    """

    url: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        return redact(f"StoreDescription(url={self.url!r}, options={dict(self.options)!r})")

    def open(self, *, env: Env | None = None, policy: RetryPolicy | None = None) -> FileIO:
        """The opened store. Raises InvalidConfig or MissingDependency; sends no request."""
        _, scheme = scheme_of(self.url)
        root, prefix = split_url(self.url)
        options = parse_options(scheme.options_class, self.options, where=_shown(self.url))
        backend = scheme.open(root, options)
        return FileIO(PrefixedBackend(backend, prefix) if prefix else backend, env=env, policy=policy, description=self)

    def child(self, prefix: str) -> StoreDescription:
        """The description of the keys below `prefix`."""
        check_key(prefix)
        return StoreDescription(self.url.rstrip("/") + "/" + quote_path(prefix), self.options)


def open_store(
    url: str | os.PathLike[str], options: Mapping[str, Any] | None = None, *, env: Env | None = None, policy: RetryPolicy | None = None
) -> FileIO:
    """Open the store at `url`: `memory:`, `file:/path` or a bare path, `s3://bucket/prefix`, `gs://bucket/prefix`, `az://container/prefix`.

    options: of the scheme, as text or typed values; see its options class. Sends no request. Raises InvalidConfig, MissingDependency.
    """
    return describe_store(url, options).open(env=env, policy=policy)


def describe_store(url: str | os.PathLike[str], options: Mapping[str, Any] | None = None) -> StoreDescription:
    """The description of the store at `url`, its options checked and its secrets wrapped. Sends no request.

    A bare path may begin with `~`, and is made absolute; as text, one with a colon in its first name begins with `./`. Besides the
    options given, it holds those whose field is marked `carried`: their value belongs to the process that describes.
    """
    place: object = url
    text: object = os.fspath(place) if isinstance(place, (str, os.PathLike)) else None
    if not isinstance(text, str):
        raise InvalidConfig(f"a {type(url).__name__} is no place of a store: give a URL such as 's3://bucket/prefix', or a path")
    if isinstance(place, os.PathLike) and (found := _SCHEME.match(text)) and found[1].lower() not in {*_BUILTIN, *_third_party()}:
        # Some directory has a colon in its name. One that names a scheme of ours was a URL before somebody made a path of it.
        text = f"./{text}"
    given: object = options
    if given is not None and not isinstance(given, Mapping):
        raise InvalidConfig(f"the options of {_shown(text)} are a {type(options).__name__}: give a dict, {{'region': '...'}}")
    name, scheme = scheme_of(text)
    if name == "file":
        path, _ = split_url(text)
        text = "file://" + quote_path(os.path.abspath(path if _SCHEME.match(text) else os.path.expanduser(path)))
    split_url(text)
    checked = parse_options(scheme.options_class, options or {}, where=_shown(text))
    carried = [f.name for f in dataclasses.fields(scheme.options_class) if f.metadata.get("carried")]
    return StoreDescription(text, {key: getattr(checked, key) for key in [*(options or {}), *carried]})


def split_url(url: str) -> tuple[str, str]:
    """(root, prefix) of a URL: bucket and key prefix; for schemes whose path is the root, the whole path and no prefix.

    The path of a URL is percent-encoded: a prefix with `?`, `#` or `%` in it is written with `%3F`, `%23`, `%25`. Raises InvalidConfig when
    the bucket is missing, or when credentials, a query or a fragment are in the URL.
    """
    name, scheme = scheme_of(url)
    if scheme.path_is_root:
        path = url if not _SCHEME.match(url) else unquote_path(url.split(":", 1)[1])
        path = re.sub(r"^//(localhost)?(?=/)", "", path)
        if not path or path.startswith("//"):
            raise InvalidConfig(f"{_shown(url)!r} names no directory: write file:/absolute/path or a plain path")
        return path, ""
    if not _SCHEME.match(url):
        raise InvalidConfig(f"{_shown(url)!r} is not a URL: write {name}://bucket/prefix")
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise InvalidConfig(f"{_shown(url)!r} is not a URL ({error}): write {name}://bucket/prefix") from error
    if "@" in parts.netloc or ":" in parts.netloc:
        raise InvalidConfig(f"{_shown(url)!r} has credentials in the URL: give them as options instead")
    if parts.query or parts.fragment:
        raise InvalidConfig(
            f"{_shown(url)!r} has a query or fragment: give these settings as options instead (in a prefix, write ? as %3F, # as %23)"
        )
    root = parts.netloc or ("default" if name == "memory" else "")
    if not root:
        raise InvalidConfig(f"{_shown(url)!r} names no bucket: write {name}://bucket/prefix")
    prefix = unquote_path(parts.path).strip("/")
    if prefix:
        check_key(prefix)
    return root, prefix


def _shown(url: str) -> str:
    """The URL without what might be a secret."""
    return re.sub(r"//(?:[^/@]*@|[^/:]*:.*@)", "//***@", re.split(r"[?#]", url, maxsplit=1)[0])


__all__ = ["ENTRY_POINT_GROUP", "Scheme", "StoreDescription", "describe_store", "open_store", "scheme_of", "split_url"]
