"""Settings with which a Spark session reads a store itself: the connector of its scheme, the endpoint and the credentials."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from fileio.optional import library
from fileio.options import Secret
from fileio.registry import describe_store
from objcat.errors import InvalidInput

Builder = TypeVar("Builder")

AWS_SDK = tuple(f"software.amazon.awssdk:{module}:2.35.4" for module in ("s3", "s3-transfer-manager", "sts", "apache-client"))
AWS_SDK_1 = tuple(f"com.amazonaws:aws-java-sdk-{module}:1.12.262" for module in ("s3", "sts", "dynamodb"))
"""The AWS SDK for the S3 connector, and for that of Hadoop 3.3; the bundle that the connector asks for is 36 times as large."""
BUNDLES = ("software.amazon.awssdk:bundle", "com.amazonaws:aws-java-sdk-bundle")
GCS_CONNECTOR = "hadoop3-2.2.26"

# Options about requests and writes of objcat; reads through Spark have their own settings.
_WITHOUT_MEANING = frozenset(
    {
        *("connect_timeout_s", "read_timeout_s", "max_connections", "request_checksum"),
        *("conditional_copy", "express", "sse", "sse_kms_key_id", "kms_key", "encryption_scope", "project"),
    }
)


def configure(
    builder: Builder, url: str | os.PathLike[str], options: Mapping[str, Any] | None = None, *, jar: str | None = None
) -> Builder:
    """Add to a Spark session builder what the session needs to read a store natively.

        spark = objcat.spark.configure(SparkSession.builder, "s3://lake", {"region": "eu-central-1"}).getOrCreate()

    Call it before the JVM starts; Spark then fetches the connector from its Maven repositories. What the builder has in
    `spark.jars.packages`, `spark.jars.excludes` and `spark.jars` stays. A local store needs nothing. The settings hold secrets in plain
    text; Spark hides them in its UI.

    Args:
        builder: the builder of the session.
        url: of the lake or table, as for `objcat.connect`.
        options: store options, as for `objcat.connect`. Without credentials the connector uses its own default chain.
        jar: path or URL of the connector, instead of fetching it. Needed for `gs`, whose connector (the `shaded` jar of gcs-connector) has
            no coordinates that Spark can name.

    Returns:
        The builder.

    Raises:
        InvalidConfig: an option is unknown.
        InvalidInput: the connector has no setting for an option, Spark has no connector for the scheme, or `gs` comes without a jar.
        MissingDependency: a library of the Spark Connect client is missing.
    """
    _check_connect(builder)
    store = describe_store(url, options)
    scheme, _, rest = store.url.partition("://")
    bucket = rest.split("/", 1)[0]
    given = {name: _text(value) for name, value in store.options.items() if value is not None}
    if scheme not in _SCHEMES:
        if store.url.startswith("file:"):
            return builder
        raise InvalidInput(
            f"Spark has no connector for {store.url}. Use the session without configure(); Python workers read such a store."
        )
    settings, packages, excludes = _SCHEMES[scheme](bucket, given, jar)
    left = {name for name in given if name not in _WITHOUT_MEANING and (name, given[name]) != ("verify_tls", "true")}
    if left:
        raise InvalidInput(
            f"The option {min(left)!r} of {store.url} has no known counterpart among the settings of Spark's connector. Leave "
            "it out here, and set what the connector's documentation says."
        )
    config: Callable[[str, str], Any] = builder.config  # type: ignore[attr-defined]
    for name, value in settings.items():
        config(name, value)
    joined = {
        "spark.jars.packages": [] if jar else packages,
        "spark.jars.excludes": [] if jar else excludes,
        "spark.jars": [jar] if jar else [],
    }
    for name, values in joined.items():
        if values:
            config(name, _with(builder, name, values))
    return builder


def _check_connect(builder: Any) -> None:
    """Name the extra where the builder is for Spark Connect and a library of its client is missing. Raises MissingDependency."""
    if os.environ.get("SPARK_REMOTE") or "spark.remote" in getattr(builder, "_options", {}):
        for module in ("grpc", "grpc_status", "google.rpc", "pandas"):
            library(module, needed_by="Spark Connect needs", extra="connect")


def _text(value: Any) -> str:
    if isinstance(value, Secret):
        return value.reveal()
    return str(value).lower() if isinstance(value, bool) else str(value)


def _with(builder: Any, name: str, values: list[str]) -> str:
    """The value of a list setting, added to what the builder has."""
    before = [part for part in str(getattr(builder, "_options", {}).get(name, "")).split(",") if part]
    return ",".join(dict.fromkeys([*before, *values]))


def hadoop_version() -> str:
    """The Hadoop version of this PySpark, which its connectors must match. Raises InvalidInput when there is none."""
    from pyspark.find_spark_home import _find_spark_home

    for found in sorted(Path(_find_spark_home()).glob("jars/hadoop-client-api-*.jar")):
        version = re.fullmatch(r"hadoop-client-api-(.+)\.jar", found.name)
        if version is not None:
            return version[1]
    raise InvalidInput("This Spark has no Hadoop, so the connector's version is not known. Give the connector as jar=...")


_Settings = tuple[dict[str, str], list[str], list[str]]


def _s3(bucket: str, given: dict[str, str], jar: str | None) -> _Settings:
    """Settings for this bucket alone, so that a session may read several stores. Takes the options that it knows out of `given`."""
    settings: dict[str, str] = {}

    def say(name: str, value: str) -> None:
        settings[f"spark.hadoop.fs.s3a.bucket.{bucket}.{name}"] = value

    endpoint = given.pop("endpoint", None)
    path_style = given.pop("path_style", "true" if endpoint else "false")
    if endpoint is not None:
        say("endpoint", endpoint)
        say("connection.ssl.enabled", "true" if urlsplit(endpoint).scheme == "https" else "false")
    say("path.style.access", path_style.lower())
    # Without a region the connector asks for one, wherever the bucket is.
    if "region" in given or endpoint is not None:
        say("endpoint.region", given.pop("region", "us-east-1"))
    if "access_key" in given:
        say("access.key", given.pop("access_key"))
        say("secret.key", given.pop("secret_key", ""))
        provider = "SimpleAWSCredentialsProvider"
        if "session_token" in given:
            say("session.token", given.pop("session_token"))
            provider = "TemporaryAWSCredentialsProvider"
        say("aws.credentials.provider", f"org.apache.hadoop.fs.s3a.{provider}")
    if given.pop("anonymous", "false").lower() == "true":
        say("aws.credentials.provider", "org.apache.hadoop.fs.s3a.AnonymousAWSCredentialsProvider")
    if "role_arn" in given and "external_id" not in given:
        base = settings.get(f"spark.hadoop.fs.s3a.bucket.{bucket}.aws.credentials.provider")
        say("aws.credentials.provider", "org.apache.hadoop.fs.s3a.auth.AssumedRoleCredentialProvider")
        say("assumed.role.arn", given.pop("role_arn"))
        if base is not None:
            say("assumed.role.credentials.provider", base)
        if "sts_endpoint" in given:
            say("assumed.role.sts.endpoint", given.pop("sts_endpoint"))
    if "sse_customer_key" in given:
        say("encryption.algorithm", "SSE-C")
        say("encryption.key", given.pop("sse_customer_key"))
    if jar:
        return settings, [], []
    hadoop = hadoop_version()
    is_old = hadoop.startswith("3.3.")
    return settings, [f"org.apache.hadoop:hadoop-aws:{hadoop}", *(AWS_SDK_1 if is_old else AWS_SDK)], [BUNDLES[is_old]]


def _gs(_bucket: str, given: dict[str, str], jar: str | None) -> _Settings:
    if jar is None:
        raise InvalidInput(
            "The connector of gs:// is a jar that spark.jars.packages cannot name. Fetch "
            f"com.google.cloud.bigdataoss:gcs-connector:{GCS_CONNECTOR} with the classifier shaded from Maven, and give its "
            "path as jar=..."
        )
    settings = {
        "spark.hadoop.fs.gs.impl": "com.google.cloud.hadoop.fs.gcs.GoogleHadoopFileSystem",
        "spark.hadoop.fs.AbstractFileSystem.gs.impl": "com.google.cloud.hadoop.fs.gcs.GoogleHadoopFS",
        # The defaults of this connector have units, which newer versions of Hadoop refuse.
        "spark.hadoop.fs.gs.block.size": "67108864",
        "spark.hadoop.fs.gs.rewrite.max.chunk.size": "536870912",
        "spark.hadoop.fs.gs.outputstream.buffer.size": "8388608",
        "spark.hadoop.fs.gs.outputstream.upload.chunk.size": "8388608",
        "spark.hadoop.fs.gs.outputstream.sync.min.interval": "0",
        "spark.hadoop.fs.gs.inputstream.inplace.seek.limit": "8388608",
        "spark.hadoop.fs.gs.inputstream.min.range.request.size": "2097152",
    }
    if "endpoint" in given:
        settings["spark.hadoop.fs.gs.storage.root.url"] = given.pop("endpoint")
    if given.pop("anonymous", "false").lower() == "true":
        settings["spark.hadoop.fs.gs.auth.type"] = "UNAUTHENTICATED"
        settings["spark.hadoop.fs.gs.auth.service.account.enable"] = "false"
        settings["spark.hadoop.fs.gs.auth.null.enable"] = "true"
    if "credentials_file" in given:
        settings["spark.hadoop.fs.gs.auth.type"] = "SERVICE_ACCOUNT_JSON_KEYFILE"
        settings["spark.hadoop.fs.gs.auth.service.account.json.keyfile"] = given.pop("credentials_file")
    if "impersonate_service_account" in given:
        settings["spark.hadoop.fs.gs.auth.impersonation.service.account"] = given.pop("impersonate_service_account")
    if "user_project" in given:
        settings["spark.hadoop.fs.gs.requester.pays.mode"] = "AUTO"
        settings["spark.hadoop.fs.gs.requester.pays.project.id"] = given.pop("user_project")
    if "encryption_key" in given:
        settings["spark.hadoop.fs.gs.encryption.algorithm"] = "AES256"
        settings["spark.hadoop.fs.gs.encryption.key"] = given.pop("encryption_key")
    return settings, [], []


def _az(_container: str, given: dict[str, str], jar: str | None) -> _Settings:
    account = given.pop("account", None)
    if account is None or "endpoint" in given or "connection_string" in given:
        raise InvalidInput("Spark's connector of az:// needs the name of an account at Azure. Give the option account, and no endpoint.")
    host = f"{account}.dfs.core.windows.net"
    settings: dict[str, str] = {}
    if "account_key" in given:
        settings[f"spark.hadoop.fs.azure.account.key.{host}"] = given.pop("account_key")
    elif "sas_token" in given:
        settings[f"spark.hadoop.fs.azure.account.auth.type.{host}"] = "SAS"
        settings[f"spark.hadoop.fs.azure.sas.fixed.token.{host}"] = given.pop("sas_token")
    elif "client_secret" in given and "client_id" in given and "tenant_id" in given:
        tenant = given.pop("tenant_id")
        settings[f"spark.hadoop.fs.azure.account.auth.type.{host}"] = "OAuth"
        oauth = "org.apache.hadoop.fs.azurebfs.oauth2.ClientCredsTokenProvider"
        settings[f"spark.hadoop.fs.azure.account.oauth.provider.type.{host}"] = oauth
        settings[f"spark.hadoop.fs.azure.account.oauth2.client.id.{host}"] = given.pop("client_id")
        settings[f"spark.hadoop.fs.azure.account.oauth2.client.secret.{host}"] = given.pop("client_secret")
        settings[f"spark.hadoop.fs.azure.account.oauth2.client.endpoint.{host}"] = (
            f"https://login.microsoftonline.com/{tenant}/oauth2/token"
        )
    elif "managed_identity_client_id" in given:
        settings[f"spark.hadoop.fs.azure.account.auth.type.{host}"] = "OAuth"
        oauth = "org.apache.hadoop.fs.azurebfs.oauth2.MsiTokenProvider"
        settings[f"spark.hadoop.fs.azure.account.oauth.provider.type.{host}"] = oauth
        settings[f"spark.hadoop.fs.azure.account.oauth2.client.id.{host}"] = given.pop("managed_identity_client_id")
    return settings, [] if jar else [f"org.apache.hadoop:hadoop-azure:{hadoop_version()}"], []


_SCHEMES: Mapping[str, Callable[[str, dict[str, str], str | None], _Settings]] = {"s3": _s3, "gs": _gs, "az": _az}
