"""Credentials that read below some prefixes of a bucket, by STS: those of a role or of a user, cut down by a session policy."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from fileio.errors import InvalidConfig
from fileio.options import Secret
from fileio.s3.client import S3Client, sts_client
from fileio.s3.errors import Failure
from fileio.s3.options import S3Options

SESSION_NAME = "objcat-delegated"
"""What the store's own logs call the one who reads."""
_SPECIAL = re.compile(r"[*?$]")
"""Characters that mean something in the resource of a policy."""
_ROLE = re.compile(r"arn:([a-z0-9-]+):iam::\S+")


def session_credentials(
    bucket: str, prefixes: Sequence[str], options: S3Options, *, lifetime_s: int, role: str | None
) -> tuple[Mapping[str, Secret | str], int]:
    """Options that open the bucket with delegated credentials, and when these end. Raises as `delegate_reading`.

    `AssumeRole` where there is a role, else `GetFederationToken`, which users with keys of their own may call. `GetSessionToken` takes no
    policy, so it cannot limit anything.
    """
    if role is not None and _ROLE.fullmatch(role) is None:
        raise InvalidConfig(f"The role {role!r} is no ARN. Pass one such as arn:aws:iam::123456789012:role/readers.")
    policy = json.dumps(policy_of(bucket, prefixes, options, role=role), separators=(",", ":"))
    client = S3Client(bucket, options)
    try:
        sts: Any = sts_client(options)
        if role is None:
            answer = sts.get_federation_token(Name=SESSION_NAME, Policy=policy, DurationSeconds=lifetime_s)
        else:
            answer = sts.assume_role(RoleArn=role, RoleSessionName=SESSION_NAME, Policy=policy, DurationSeconds=lifetime_s)
    except Exception as error:  # noqa: BLE001 - every error of the SDK is classified
        failure: Failure = client.failure(error, "delegation", role or "the user of these credentials")
        raise failure.error from None
    found = answer["Credentials"]
    ends: datetime = found["Expiration"]
    values: dict[str, Secret | str] = {
        "access_key": str(found["AccessKeyId"]),
        "secret_key": Secret(found["SecretAccessKey"]),
        "session_token": Secret(found["SessionToken"]),
    }
    return values, int(ends.timestamp() * 1000)


def policy_of(bucket: str, prefixes: Sequence[str], options: S3Options, *, role: str | None) -> dict[str, Any]:
    """The session policy: objects below the prefixes may be read. The rights of the role or the user limit it further.

    Raises InvalidConfig for a name that a policy would take for a pattern.
    """
    unfit = next((text for text in (bucket, *prefixes) if _SPECIAL.search(text)), None)
    if unfit is not None:
        raise InvalidConfig(f"No policy can name {unfit!r}, because *, ? and $ have a meaning there. Choose another prefix.")
    found = None if role is None else _ROLE.fullmatch(role)
    partition = "aws" if found is None else found[1]
    statements: list[dict[str, Any]] = [
        {"Effect": "Allow", "Action": "s3:GetObject", "Resource": [f"arn:{partition}:s3:::{bucket}/{prefix}/*" for prefix in prefixes]}
    ]
    if options.endpoint is None:
        # Objects of a bucket with a KMS key are read with the right to decrypt, in S3 alone.
        through = {"StringLike": {"kms:ViaService": "s3.*.amazonaws.com*"}}
        statements.append({"Effect": "Allow", "Action": "kms:Decrypt", "Resource": "*", "Condition": through})
    return {"Version": "2012-10-17", "Statement": statements}
