"""Where files of foreign tables are: from the URLs that other formats write to keys of the lake."""

from __future__ import annotations

import re

from fileio.options import unquote_path
from fileio.store import FileIO
from objcat.errors import InvalidInput

_SCHEMES = {"s3a": "s3", "s3n": "s3", "gcs": "gs", "abfs": "az", "abfss": "az", "wasb": "az", "wasbs": "az", "adl": "az"}
_URL = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]*):(.*)$", re.DOTALL)


def plain_location(location: str) -> str:
    """A location as `scheme://bucket/path`, or as an absolute local path, without a slash at its end. Nothing is decoded."""
    found = _URL.match(location)
    if found is None:
        return location.rstrip("/")
    scheme, rest = found[1].lower(), found[2]
    scheme = _SCHEMES.get(scheme, scheme)
    if scheme == "file":
        return "/" + rest.lstrip("/").rstrip("/")
    bucket, _, path = rest.lstrip("/").partition("/")
    # Azure's own URLs name the container before the account.
    return f"{scheme}://{bucket.partition('@')[0]}/{path}".rstrip("/")


def key_of(fileio: FileIO, location: str, *, what: str) -> str:
    """The key in a lake of a location, which is not percent-encoded. Raises InvalidInput for one outside the lake.

    what: the subject of the error.
    """
    root = plain_location(unquote_path(fileio.url))
    found = plain_location(location)
    if not found.startswith(f"{root}/"):
        raise InvalidInput(
            f"{what} {location!r} lies outside the lake at {fileio.url}, so a table of it cannot name the file. Nothing was adopted. "
            "Connect to a lake at a prefix that holds the whole table, such as its bucket, or copy the rows with lake.write()."
        )
    return found[len(root) + 1 :]


def location_below(fileio: FileIO, source: str) -> str:
    """The location of a source as users write it: a URL, an absolute path, or a path relative to the lake."""
    found = plain_location(source)
    return found if found.startswith("/") or "://" in found else f"{plain_location(unquote_path(fileio.url))}/{found}"
