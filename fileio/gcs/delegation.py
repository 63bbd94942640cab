"""A token that reads below some prefixes of a bucket: the token of this process, cut down by a Credential Access Boundary."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC
from typing import Any

from fileio.env import default_env
from fileio.errors import InvalidConfig
from fileio.gcs.client import GCSOptions, classify, token_source
from fileio.options import Secret

SCOPE = "https://www.googleapis.com/auth/cloud-platform"
"""What the token that is cut down must be for: the exchange takes no narrower one."""
LIFETIME_MS = 3600 * 1000
"""The lifetime of a token whose end the exchange does not tell."""


def downscoped_token(
    bucket: str, prefixes: Sequence[str], options: GCSOptions, *, request: Callable[..., Any] | None = None
) -> tuple[Mapping[str, Secret | str], int]:
    """Options that open the bucket with a downscoped token, and when it ends. Raises as `delegate_reading`.

    request: sends the requests of google-auth, instead of the connections that the options name.
    """
    import google.auth.credentials
    import google.auth.downscoped

    url = f"gs://{bucket}"
    if options.anonymous:
        raise InvalidConfig(f"{url} is opened without credentials, so none can be delegated. Pass 'credentials_file' or another one.")
    downscoped: Any = google.auth.downscoped
    rule = downscoped.AccessBoundaryRule(
        available_resource=f"//storage.googleapis.com/projects/_/buckets/{bucket}",
        available_permissions=["inRole:roles/storage.objectViewer"],
        availability_condition=downscoped.AvailabilityCondition(condition_of(bucket, prefixes)),
    )
    try:
        source, own_request = token_source(options)
        if isinstance(source, google.auth.credentials.Scoped):
            untyped: Any = source
            source = untyped.with_scopes([SCOPE])
        token = downscoped.Credentials(source, downscoped.CredentialAccessBoundary(rules=[rule]))
        token.refresh(request or own_request)
    except Exception as error:
        known = classify(error, url, None, options, lambda: False)
        if known is None:
            raise
        raise known from None
    ends = default_env().now_ms() + LIFETIME_MS if token.expiry is None else int(token.expiry.replace(tzinfo=UTC).timestamp() * 1000)
    return {"access_token": Secret(str(token.token))}, ends


def condition_of(bucket: str, prefixes: Sequence[str]) -> str:
    """Which objects may be read, in the language of conditions (CEL). Raises InvalidConfig for a name that it cannot hold."""
    unfit = next((prefix for prefix in prefixes if any(char in prefix for char in "'\\\n\r")), None)
    if unfit is not None:
        raise InvalidConfig(f"No condition can name the prefix {unfit!r}, because of its quotes or backslashes. Choose another one.")
    return " || ".join(f"resource.name.startsWith('projects/_/buckets/{bucket}/objects/{prefix}/')" for prefix in prefixes)
