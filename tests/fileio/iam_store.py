"""A store with roles and an STS, which holds credentials to their session policies: SeaweedFS with a configuration of its own."""

from __future__ import annotations

import json
from base64 import b64encode
from pathlib import Path
from typing import Any

from devkit.handle import ServerHandle
from devkit.servers import Servers

READERS = "arn:aws:iam::123456789012:role/readers"
"""A role that everybody may assume, and that reads all buckets."""


def start_iam_store(servers: Servers, folder: Path) -> ServerHandle:
    """The store. folder: for its configuration."""
    configuration = folder / "iam.json"
    configuration.write_text(json.dumps(_configuration()))
    return servers.start_own("seaweedfs", f"-s3.iam.config={configuration}")


def _configuration() -> dict[str, Any]:
    def policy(**statement: Any) -> dict[str, Any]:
        return {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", **statement}]}

    read = policy(Action=["s3:GetObject", "s3:ListBucket"], Resource=["arn:aws:s3:::*", "arn:aws:s3:::*/*"])
    trust = policy(Principal="*", Action=["sts:AssumeRole"])
    key = b64encode(b"a key of the tests of 32 bytes!!").decode()
    return {
        "sts": {"tokenDuration": "1h", "maxSessionLength": "12h", "issuer": "objcat-tests", "signingKey": key},
        "policy": {"defaultEffect": "Deny", "storeType": "memory"},
        "policies": [{"name": "read", "document": read}],
        "roles": [{"roleName": "readers", "roleArn": READERS, "trustPolicy": trust, "attachedPolicies": ["read"]}],
    }
