"""Delegated credentials: what is asked of the store, and what reads with the answer."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, Self
from urllib.parse import parse_qs, unquote

import pytest

from devkit.handle import ServerHandle
from devkit.servers import ServerName
from fileio.azure import delegation as azure
from fileio.azure.client import AzureOptions
from fileio.contract import Create
from fileio.delegation import delegate_reading
from fileio.env import default_env
from fileio.errors import CredentialsError, InvalidConfig, InvalidKey, PermissionDenied, Unsupported
from fileio.gcs.client import GCSOptions
from fileio.gcs.delegation import condition_of, downscoped_token
from fileio.options import Secret
from fileio.registry import describe_store, open_store
from fileio.s3.delegation import policy_of
from fileio.s3.options import S3Options
from tests.fileio.iam_store import READERS

ROLE = "arn:aws:iam::123456789012:role/readers"
START = Callable[[ServerName], ServerHandle]


# ---- S3


def test_a_session_policy_lets_read_below_the_prefixes_alone() -> None:
    policy = policy_of("bucket", ["lake/tables/a", "lake/_mirrors/t"], S3Options(endpoint="http://store:1"), role=ROLE)
    assert policy["Statement"] == [
        {
            "Effect": "Allow",
            "Action": "s3:GetObject",
            "Resource": ["arn:aws:s3:::bucket/lake/tables/a/*", "arn:aws:s3:::bucket/lake/_mirrors/t/*"],
        }
    ]
    on_aws = policy_of("bucket", ["p"], S3Options(), role="arn:aws-cn:iam::123456789012:role/r")["Statement"]
    assert on_aws[0]["Resource"] == ["arn:aws-cn:s3:::bucket/p/*"]
    assert on_aws[1]["Action"] == "kms:Decrypt" and "kms:ViaService" in json.dumps(on_aws[1])


@pytest.mark.parametrize("prefix", ["a*", "a?b", "${aws:username}"])
def test_a_prefix_that_a_policy_would_take_for_a_pattern_is_refused(prefix: str) -> None:
    with pytest.raises(InvalidConfig, match="have a meaning there"):
        policy_of("bucket", [prefix], S3Options(), role=None)


@pytest.mark.parametrize("role", [ROLE, None])
def test_sts_gives_credentials_that_open_the_store(servers: START, role: str | None) -> None:
    handle = servers("moto").fresh_bucket()
    with open_store(f"{handle.url}/lake", handle.options) as store:
        store.put("t/a", b"x", Create())
        found = delegate_reading(store.describe(), ["t"], lifetime_s=900, role=role)
    left_ms = found.expires_ms - default_env().now_ms()
    assert 0 < left_ms <= 900_000
    assert "secret" not in repr(found).lower() or "***" in repr(found)
    own = {name: value for name, value in handle.options.items() if name not in ("access_key", "secret_key")}
    with open_store(f"{handle.url}/lake", {**own, **found.options}) as other:
        assert other.read("t/a") == b"x"


def test_a_store_holds_delegated_credentials_to_their_prefix(iam_store: ServerHandle) -> None:
    """SeaweedFS enforces session policies: below the prefix the role reads, and nothing else is allowed."""
    handle = iam_store
    with open_store(f"{handle.url}/lake", handle.options) as store:
        for key in ("tables/a/1", "tables/b/1", "tables/a-other/1"):
            store.put(key, key.encode(), Create())
        found = delegate_reading(store.describe(), ["tables/a"], lifetime_s=900, role=READERS)
    own = {name: value for name, value in handle.options.items() if name not in ("access_key", "secret_key")}
    with open_store(f"{handle.url}/lake", {**own, **found.options}) as other:
        assert other.read("tables/a/1") == b"tables/a/1"
        for refused in (
            lambda: other.read("tables/b/1"),
            lambda: other.read("tables/a-other/1"),
            lambda: other.put("tables/a/2", b"x", Create()),
            lambda: list(other.list_keys("tables/a/")),
        ):
            with pytest.raises(PermissionDenied):
                refused()
        (deleted,) = other.delete(["tables/a/1"])
        assert isinstance(deleted.error, PermissionDenied)


def test_what_sts_refuses_is_typed(servers: START) -> None:
    handle = servers("moto").fresh_bucket()
    store = describe_store(handle.url, handle.options)
    with pytest.raises(InvalidConfig, match="is no ARN"):
        delegate_reading(store, ["t"], lifetime_s=900, role="readers")
    with pytest.raises(InvalidKey):
        delegate_reading(store, ["../other"], lifetime_s=900)
    nowhere = describe_store(handle.url, {**handle.options, "sts_endpoint": "http://127.0.0.1:9"})
    with pytest.raises(Exception, match=r"127\.0\.0\.1:9") as raised:
        delegate_reading(nowhere, ["t"], lifetime_s=900, role=ROLE)
    assert handle.options["secret_key"] not in str(raised.value)


def test_other_stores_have_none() -> None:
    for url in ("memory:x", "/tmp/x"):
        with pytest.raises(Unsupported, match="no credentials"):
            delegate_reading(describe_store(url), ["t"], lifetime_s=900)


# ---- GCS


class TokenServices:
    """The token endpoint and the exchange of Google. Remembers what it was asked."""

    def __init__(self, status: int = 200) -> None:
        self.exchanged: dict[str, list[str]] = {}
        self._status = status

    def __call__(self, url: str, method: str = "GET", body: Any = None, headers: Any = None, **_: Any) -> Any:
        text = body.decode() if isinstance(body, bytes) else str(body)
        is_exchange = url == "https://sts.googleapis.com/v1/token"
        if is_exchange:
            self.exchanged = parse_qs(text)
        said = {"access_token": "cut-down" if is_exchange else "whole", "expires_in": 1800, "token_type": "Bearer"}
        status = self._status if is_exchange else 200
        answer = said if status == 200 else {"error": "invalid_request", "error_description": "no such boundary"}
        return type("Answer", (), {"status": status, "data": json.dumps(answer).encode(), "headers": {}})()


USER = Secret(json.dumps({"type": "authorized_user", "client_id": "c", "client_secret": "s", "refresh_token": "r"}))


def test_a_token_of_google_is_cut_down_by_an_access_boundary() -> None:
    services = TokenServices()
    options, ends_ms = downscoped_token("bucket", ["lake/tables/a", "lake/b"], GCSOptions(credentials_json=USER), request=services)
    assert {name: value.reveal() for name, value in options.items() if isinstance(value, Secret)} == {"access_token": "cut-down"}
    assert 0 < ends_ms - default_env().now_ms() <= 1_800_000
    assert services.exchanged["subject_token"] == ["whole"]
    (boundary,) = json.loads(unquote(services.exchanged["options"][0]))["accessBoundary"]["accessBoundaryRules"]
    assert boundary["availableResource"] == "//storage.googleapis.com/projects/_/buckets/bucket"
    assert boundary["availablePermissions"] == ["inRole:roles/storage.objectViewer"]
    assert boundary["availabilityCondition"]["expression"] == (
        "resource.name.startsWith('projects/_/buckets/bucket/objects/lake/tables/a/') || "
        "resource.name.startsWith('projects/_/buckets/bucket/objects/lake/b/')"
    )


def test_what_google_refuses_is_typed() -> None:
    with pytest.raises(CredentialsError, match="no such boundary"):
        downscoped_token("bucket", ["a"], GCSOptions(credentials_json=USER), request=TokenServices(400))
    with pytest.raises(CredentialsError):
        downscoped_token("bucket", ["a"], GCSOptions(access_token=Secret("of-its-own")), request=TokenServices())
    with pytest.raises(InvalidConfig, match="without credentials"):
        downscoped_token("bucket", ["a"], GCSOptions(anonymous=True))
    with pytest.raises(InvalidConfig, match="quotes"):
        condition_of("bucket", ["a') || true || ('"])


# ---- Azure


class Account:
    """Stands for the service of an account, which gives a user delegation key."""

    def __init__(self, error: Exception | None = None) -> None:
        self._error = error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def get_user_delegation_key(self, start: Any, end: Any) -> Any:
        if self._error is not None:
            raise self._error
        from azure.storage.blob import UserDelegationKey

        key = UserDelegationKey()
        key.signed_oid = key.signed_tid = "11111111-1111-1111-1111-111111111111"
        key.signed_start, key.signed_expiry = f"{start:%Y-%m-%dT%H:%M:%SZ}", f"{end:%Y-%m-%dT%H:%M:%SZ}"
        key.signed_service, key.signed_version, key.value = "b", "2022-11-02", "aGlkZGVu"
        return key


class Identity:
    """An identity of Entra ID."""

    def get_token(self, *_: str, **__: Any) -> Any: ...


def test_a_sas_is_for_one_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(azure, "account_client", lambda *_: Account())
    options, ends_ms = azure.directory_sas("box", ["lake/tables/a"], AzureOptions(account="shop"), lifetime_s=900, credential=Identity())
    assert options["account"] == "shop"
    assert 0 < ends_ms - default_env().now_ms() <= 900_000
    sas = options["sas_token"]
    assert isinstance(sas, Secret)
    said = {name: values[0] for name, values in parse_qs(sas.reveal()).items()}
    assert (said["sr"], said["sdd"], said["sp"]) == ("d", "3", "r")
    assert said["sig"] and said["skoid"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", said["se"])


def test_what_azure_cannot_delegate_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from azure.core.exceptions import HttpResponseError

    with pytest.raises(InvalidConfig, match="Only an identity of Entra ID"):
        azure.directory_sas("box", ["a"], AzureOptions(account="shop", account_key=Secret("aGk=")), lifetime_s=900)
    with pytest.raises(InvalidConfig, match="is for one folder, and 2"):
        azure.directory_sas("box", ["a", "b"], AzureOptions(account="shop", account_key=Secret("aGk=")), lifetime_s=900)
    refused = HttpResponseError("no")
    refused.status_code = 403
    monkeypatch.setattr(azure, "account_client", lambda *_: Account(refused))
    with pytest.raises(PermissionDenied, match="Storage Blob Delegator"):
        azure.directory_sas("box", ["a"], AzureOptions(account="shop"), lifetime_s=900, credential=Identity())
