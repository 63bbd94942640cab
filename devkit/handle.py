"""`ServerHandle`: a running store, as tests, the demo and `./dev servers` see it."""

from __future__ import annotations

import http.client
import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal
from urllib.parse import urlsplit

StoreScheme = Literal["s3", "gs", "az"]


@dataclass(frozen=True, slots=True)
class ServerHandle:
    """A store on a running server. `fileio.registry.open_store(handle.url, handle.options)` opens it.

    Args:
        name: The name of the server.
        scheme: `s3`, `gs` or `az`.
        url: The URL of an existing bucket.
        options: The options of the scheme, as text. They hold only keys of a server on loopback, which are not secret.
    """

    name: str
    scheme: StoreScheme
    url: str
    options: Mapping[str, str]

    @property
    def endpoint(self) -> str:
        """The base URL of the server."""
        return self.options["endpoint"]

    @property
    def address(self) -> tuple[str, int]:
        """The host and port of the server."""
        parts = urlsplit(self.endpoint)
        assert parts.hostname is not None and parts.port is not None, self.endpoint
        return parts.hostname, parts.port

    def through(self, proxy_url: str) -> ServerHandle:
        """The same store through a proxy at `http://host:port`."""
        endpoint = proxy_url + urlsplit(self.endpoint).path
        return replace(self, options={**self.options, "endpoint": endpoint})

    def fresh_bucket(self) -> ServerHandle:
        """The same server with a new, empty bucket or container."""
        bucket = f"objcat-{secrets.token_hex(6)}"
        _MAKE_BUCKET[self.scheme](self, bucket)
        return replace(self, url=f"{self.scheme}://{bucket}")

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables by which other tools (SDKs, command lines) find the server."""
        match self.scheme:
            case "s3":
                return {
                    "AWS_ENDPOINT_URL": self.endpoint,
                    "AWS_REGION": self.options["region"],
                    "AWS_ACCESS_KEY_ID": self.options["access_key"],
                    "AWS_SECRET_ACCESS_KEY": self.options["secret_key"],
                }
            case "gs":
                return {"STORAGE_EMULATOR_HOST": self.endpoint, "GOOGLE_CLOUD_PROJECT": self.options["project"]}
            case "az":
                return {"AZURE_STORAGE_CONNECTION_STRING": azure_connection_string(self)}


def s3_client(handle: ServerHandle) -> Any:
    """A plain boto3 client of the server, without retries."""
    import boto3  # slow to import, and not every server needs it
    from botocore.config import Config

    return boto3.session.Session().client(
        "s3",
        endpoint_url=handle.endpoint,
        region_name=handle.options["region"],
        aws_access_key_id=handle.options["access_key"],
        aws_secret_access_key=handle.options["secret_key"],
        config=Config(s3={"addressing_style": "path"}, retries={"total_max_attempts": 1}, proxies={}, connect_timeout=5, read_timeout=30),
    )


def azure_connection_string(handle: ServerHandle) -> str:
    """The connection string of an Azure server."""
    account, key = handle.options["account"], handle.options["account_key"]
    return f"DefaultEndpointsProtocol=http;AccountName={account};AccountKey={key};BlobEndpoint={handle.endpoint};"


def _make_s3_bucket(handle: ServerHandle, bucket: str) -> None:
    s3_client(handle).create_bucket(Bucket=bucket)


def _make_gcs_bucket(handle: ServerHandle, bucket: str) -> None:
    connection = http.client.HTTPConnection(*handle.address, timeout=30)
    try:
        body = json.dumps({"name": bucket})
        connection.request("POST", f"/storage/v1/b?project={handle.options['project']}", body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        answer = response.read()
    finally:
        connection.close()
    if response.status != http.HTTPStatus.OK:
        raise ConnectionError(f"{handle.name} refused to create the bucket {bucket}. It answered {response.status} {answer[:200]!r}.")


def _make_azure_container(handle: ServerHandle, container: str) -> None:
    from azure.storage.blob import BlobServiceClient  # slow to import

    with BlobServiceClient.from_connection_string(azure_connection_string(handle), retry_total=0) as service:
        service.create_container(container)


_MAKE_BUCKET = {"s3": _make_s3_bucket, "gs": _make_gcs_bucket, "az": _make_azure_container}
