"""`delegate_reading`: credentials for somebody else, who may read below some prefixes of a store for a while.

They come from the delegation of the store itself: a session policy of STS on AWS and servers like it, a downscoped token on Google Cloud, a
directory SAS of a user delegation key on Azure. Who delegates needs credentials that may do so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fileio.contract import check_key
from fileio.errors import Unsupported
from fileio.options import Secret, parse_options
from fileio.schemes import scheme_of, shown_url, split_url
from fileio.store import StoreDescription


@dataclass(frozen=True, slots=True, kw_only=True)
class DelegatedCredentials:
    """Credentials that read below some prefixes.

    Args:
        options: Options of the scheme that open the store with them, instead of those of the one who delegated.
        expires_ms: When they end, in ms since 1970.
    """

    options: Mapping[str, Secret | str]
    expires_ms: int


def delegate_reading(store: StoreDescription, prefixes: Sequence[str], *, lifetime_s: int, role: str | None = None) -> DelegatedCredentials:
    """Ask the store for credentials that may read objects below some prefixes, and nothing else.

    Args:
        store: Which store, and the credentials that ask.
        prefixes: Keys of folders below the URL of the store, at least one. On Azure exactly one.
        lifetime_s: For how many seconds. Google Cloud takes the lifetime of the token that asks.
        role: On S3, the ARN of the role whose rights are cut down. None: those of the user who asks.

    Returns:
        The credentials.

    Raises:
        Unsupported: The scheme has no delegation.
        InvalidConfig: The options have credentials that cannot delegate, or the store cannot say such a prefix.
        CredentialsError, PermissionDenied, Throttled, Unavailable: The store refused, or did not answer.
    """
    for prefix in prefixes:
        check_key(prefix)
    name, scheme = scheme_of(store.url)
    bucket, root = split_url(store.url)
    below = [f"{root}/{prefix}".strip("/") for prefix in prefixes]
    found: tuple[Mapping[str, Secret | str], int]
    options: Any = parse_options(scheme.options_class, store.options, where=shown_url(store.url))
    if name == "s3":
        from fileio.s3.delegation import session_credentials

        found = session_credentials(bucket, below, options, lifetime_s=lifetime_s, role=role)
    elif name == "gs":
        from fileio.gcs.delegation import downscoped_token

        found = downscoped_token(bucket, below, options)
    elif name == "az":
        from fileio.azure.delegation import directory_sas

        found = directory_sas(bucket, below, options, lifetime_s=lifetime_s)
    else:
        raise Unsupported(f"{store.url} has no credentials, so none can be delegated.")
    return DelegatedCredentials(options=found[0], expires_ms=found[1])


__all__ = ["DelegatedCredentials", "delegate_reading"]
