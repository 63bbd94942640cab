"""`S3Options`: the options of `s3://`."""

from __future__ import annotations

import re
from base64 import b64decode
from binascii import Error as BinasciiError
from dataclasses import dataclass

from fileio.errors import (
    InvalidConfig,
)
from fileio.options import Secret, nearest, redact

SSE_KINDS = ("AES256", "aws:kms", "aws:kms:dsse")


CHECKSUM_KINDS = ("when_required", "when_supported")


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Options:
    """Options of `s3://`. The SDK's default chain (environment, profile, web identity, instance role) supplies what is missing.

    Args:
        endpoint: URL of a server other than AWS.
        region: The region of the bucket.
        access_key: Static credentials, with `secret_key`.
        secret_key: Static credentials, with `access_key`.
        session_token: The token of temporary credentials.
        profile: A profile of the shared configuration files.
        role_arn: A role to assume through STS with the other credentials. It is renewed before it expires.
        external_id: What the trust policy of the role asks for.
        sts_endpoint: URL of an STS other than AWS.
        path_style: The bucket is in the path, not in the host name. The default is True with an endpoint.
        anonymous: Requests are not signed.
        sse: Server-side encryption of new objects: `AES256`, `aws:kms` or `aws:kms:dsse`.
        sse_kms_key_id: The KMS key of `sse`.
        sse_customer_key: 32 bytes in base64, sent with every read and write (SSE-C).
        proxy: URL of an HTTP proxy. It may hold a user and a password.
        ca_bundle: Path of a PEM file to trust.
        verify_tls: False accepts any certificate.
        connect_timeout_s: Seconds to connect.
        read_timeout_s: Seconds until a silent store is `Unavailable`.
        max_connections: The number of connections to reuse.
        express: The bucket is a directory bucket: it appends, and lists in no order. Names that end in `--x-s3` always are.
        conditional_copy: The store honours conditions on the target of a copy. The default is True without an endpoint, as on AWS.
        request_checksum: `when_required`, or `when_supported` for a CRC of every body sent or read. Several servers refuse it.
    """

    endpoint: str | None = None
    region: str | None = None
    access_key: str | None = None
    secret_key: Secret | None = None
    session_token: Secret | None = None
    profile: str | None = None
    role_arn: str | None = None
    external_id: str | None = None
    sts_endpoint: str | None = None
    path_style: bool | None = None
    anonymous: bool = False
    sse: str | None = None
    sse_kms_key_id: str | None = None
    sse_customer_key: Secret | None = None
    proxy: Secret | None = None
    ca_bundle: str | None = None
    verify_tls: bool = True
    express: bool = False
    conditional_copy: bool | None = None
    request_checksum: str = "when_required"
    connect_timeout_s: float = 10.0
    read_timeout_s: float = 60.0
    max_connections: int = 32

    def __post_init__(self) -> None:
        """Raises InvalidConfig that names the wrong option."""
        for name, value in (("endpoint", self.endpoint), ("sts_endpoint", self.sts_endpoint)):
            if value is not None and not re.match(r"https?://[^/@\s]+/?$", value):
                raise InvalidConfig(
                    f"The option {name!r} is {redact(value)!r}. Pass a URL such as https://host:port, without path or credentials."
                )
        for name, value, valid in (("sse", self.sse, SSE_KINDS), ("request_checksum", self.request_checksum, CHECKSUM_KINDS)):
            if value is not None and value not in valid:
                raise InvalidConfig(f"The option {name!r} cannot be {value!r} ({nearest(value, valid)}).")
        if (self.access_key is None) != (self.secret_key is None):
            raise InvalidConfig("The options 'access_key' and 'secret_key' belong together. Pass both, or neither for the default chain.")
        if self.session_token is not None and self.access_key is None:
            raise InvalidConfig("The option 'session_token' needs 'access_key' and 'secret_key'. Pass all three.")
        if self.anonymous and (self.access_key or self.profile or self.role_arn):
            raise InvalidConfig("The option 'anonymous' excludes credentials. Drop it, or 'access_key', 'profile' and 'role_arn'.")
        if self.external_id is not None and self.role_arn is None:
            raise InvalidConfig("The option 'external_id' needs 'role_arn'. Pass both.")
        if self.sse_kms_key_id is not None and self.sse not in SSE_KINDS[1:]:
            raise InvalidConfig("The option 'sse_kms_key_id' needs the option 'sse' to be 'aws:kms' or 'aws:kms:dsse'.")
        if self.sse_customer_key is not None:
            if self.sse is not None:
                raise InvalidConfig("The options 'sse' and 'sse_customer_key' exclude each other. Choose the store's key, or yours.")
            customer_key(self.sse_customer_key)
        if min(self.connect_timeout_s, self.read_timeout_s, self.max_connections) <= 0:
            raise InvalidConfig("The options 'connect_timeout_s', 'read_timeout_s' and 'max_connections' must be greater than 0.")

    @property
    def secrets(self) -> tuple[Secret | None, ...]:
        """The values that no message may show."""
        return (self.secret_key, self.session_token, self.sse_customer_key, self.proxy)


def customer_key(key: Secret) -> bytes:
    """The 32 bytes of an SSE-C key. Raises InvalidConfig when it is malformed."""
    try:
        raw = b64decode(key.reveal(), validate=True)
    except (BinasciiError, ValueError):
        raw = b""
    if len(raw) != 32:
        raise InvalidConfig("The option 'sse_customer_key' must be 32 bytes in base64, such as `openssl rand -base64 32` prints.")
    return raw
