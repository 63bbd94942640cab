"""The set-up of Spark for a lake: the connector with which a session reads the store itself, and the lake as a catalog of the session."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias, TypeVar, overload
from urllib.parse import urlsplit

from pyspark.sql import SparkSession

from fileio.optional import library
from fileio.options import Secret
from fileio.registry import describe_store
from fileio.store import StoreDescription
from objcat.catalog.names_plugin import split_catalog_options
from objcat.errors import InvalidInput
from objcat.spark.native.relation import native_root
from objcat.spark.views import SOURCE, check_catalog_session, views

Builder = TypeVar("Builder")
_Settings: TypeAlias = tuple[dict[str, str], list[str], list[str]]
"""Settings, packages and what is left out of the packages."""

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


@overload
def configure(
    target: SparkSession, url: str | os.PathLike[str] | None = None, options: Mapping[str, Any] | None = None, *, name: str | None = None
) -> SparkSession: ...


@overload
def configure(
    target: Builder, url: str | os.PathLike[str], options: Mapping[str, Any] | None = None, *, jar: str | None = None
) -> Builder: ...


def configure(
    target: Any,
    url: str | os.PathLike[str] | None = None,
    options: Mapping[str, Any] | None = None,
    *,
    jar: str | None = None,
    name: str | None = None,
) -> Any:
    """Set up Spark for a lake: a running session gets the lake as a catalog, a session builder what the session needs to read the store.

        spark = objcat.spark.configure(SparkSession.builder, "s3://lake", {"region": "eu-central-1"}).getOrCreate()
        objcat.spark.configure(spark, "s3://lake", {"region": "eu-central-1"}, name="lake")
        spark.sql("INSERT INTO lake.city.trips VALUES (1, 'Rome')")

    *A builder*: call it before the JVM starts; Spark then fetches the connector from its Maven repositories. What the builder has in
    `spark.jars.packages`, `spark.jars.excludes` and `spark.jars` stays. A local store needs nothing. The settings hold secrets in plain
    text; Spark hides them in its UI.

    *A session*: the lake becomes a catalog, see `views`. If the session has the connector of the store, it gets the endpoint and
    credentials for this store, unless it has some. Without a URL it gets every lake that its settings name: `spark.sql.catalog.<name>.url`,
    and each option as `spark.sql.catalog.<name>.<option>`. Each session needs the call, also those of `newSession`; a second call for a
    name replaces the lake.

    Args:
        target: the builder, or the session.
        url: of the lake or table, as for `objcat.connect`. None, for a session: those of its settings.
        options: store options, as for `objcat.connect`. Without credentials the connector uses its own default chain.
        jar: for a builder: path or URL of the connector, instead of fetching it. Needed for `gs`, whose connector (the `shaded` jar of
            gcs-connector) has no coordinates that Spark can name.
        name: for a session: of the catalog; "lake" when None. Without a URL, the only one of the settings to take.

    Returns:
        The builder or the session.

    Raises:
        InvalidConfig: an option is unknown.
        InvalidInput: the connector has no setting for an option, Spark has no connector for the scheme, or `gs` comes without a jar; for a
            session also what `views` refuses, and when neither a URL nor a setting names a lake.
        MissingDependency: a library of the Spark Connect client is missing.
    """
    if not callable(getattr(target, "getOrCreate", None)):
        if jar is not None:
            raise InvalidInput(
                "A running session takes no jar. Give it to the builder: configure(SparkSession.builder, url, options, jar=...)."
            )
        return configure_session(target, url, options, name)
    if name is not None or url is None:
        raise InvalidInput(
            "A session builder takes the URL of a store, and no name. Name the catalog when the session is there: "
            "configure(spark, url, options, name=...)."
        )
    return _configure_builder(target, url, options, jar)


def _configure_builder(builder: Any, url: str | os.PathLike[str], options: Mapping[str, Any] | None, jar: str | None) -> Any:
    _check_connect(builder)
    store = describe_store(url, split_catalog_options(options)[2])
    if store.url.startswith("file:"):
        return builder
    settings, packages, excludes = _of_connector(store, jar)
    for name, value in settings.items():
        builder.config(name, value)
    joined = {
        "spark.jars.packages": [] if jar else packages,
        "spark.jars.excludes": [] if jar else excludes,
        "spark.jars": [jar] if jar else [],
    }
    for name, values in joined.items():
        if values:
            builder.config(name, _with(builder, name, values))
    return builder


def _of_connector(store: StoreDescription, jar: str | None) -> _Settings:
    """What the connector of a store needs to know. Raises InvalidInput."""
    scheme, _, rest = store.url.partition("://")
    bucket = rest.split("/", 1)[0]
    given = {name: _text(value) for name, value in store.options.items() if value is not None}
    if scheme not in _SCHEMES:
        raise InvalidInput(
            f"Spark has no connector for {store.url}. Use the session without configure(); Python workers read such a store."
        )
    found = _SCHEMES[scheme](bucket, given, jar)
    left = {name for name in given if name not in _WITHOUT_MEANING and (name, given[name]) != ("verify_tls", "true")}
    if left:
        raise InvalidInput(
            f"The option {min(left)!r} of {store.url} has no known counterpart among the settings of Spark's connector. Leave "
            "it out here, and set what the connector's documentation says. With objcat.spark.views(spark, lake) the connector is yours."
        )
    return found


# ---- a session that runs


def configure_session(
    spark: SparkSession, url: str | os.PathLike[str] | None, options: Mapping[str, Any] | None, name: str | None
) -> SparkSession:
    """Make a lake, or those of the session's settings, catalogs of a session. Raises as `configure`."""
    from objcat.lake.lake import connect  # A lake imports this package; only this function makes one.

    check_catalog_session(spark)
    if url is None and options:
        raise InvalidInput("There are options without a URL. Give the URL of the lake that they are for.")
    found = [LakeSetting(name or "lake", os.fspath(url), options or {})] if url is not None else lake_settings(spark, name)
    lakes = [(one, connect(one.url, one.options)) for one in found]
    settings = [_told_connector(spark, lake.fileio.describe()) for _, lake in lakes]
    for one, lake in lakes:
        views(spark, lake, catalog=one.name)
    hadoop: Any = spark._jsc.hadoopConfiguration()
    for setting, value in {setting: value for of_lake in settings for setting, value in of_lake.items()}.items():
        if hadoop.get(setting) is None:
            hadoop.set(setting, value)
    return spark


def _told_connector(spark: SparkSession, store: StoreDescription) -> dict[str, str]:
    """What the connector of a store needs to know, as Hadoop names it, where the session has the connector. Raises InvalidInput."""
    if store.url.startswith("file:") or native_root(spark, store) is None:
        return {}
    settings, _, _ = _of_connector(store, "the session has it")
    return {name.removeprefix("spark.hadoop."): value for name, value in settings.items()}


@dataclass(frozen=True, slots=True)
class LakeSetting:
    """A lake that settings name. `name`: of its catalog. `options`: of its store."""

    name: str
    url: str
    options: Mapping[str, Any] = field(repr=False)


def lake_settings(spark: SparkSession, name: str | None = None) -> list[LakeSetting]:
    """The lakes that a session's settings name; only the one of a name when it is given. Raises InvalidInput for none."""
    found = [one for one in known_lakes(spark) if name in (None, one.name)]
    if not found:
        raise InvalidInput(
            f"The session has no setting spark.sql.catalog.{name or '<name>'}.url, and no URL is given. Nothing was done. Set it, or "
            "give the URL: configure(spark, url, options, name=...)."
        )
    return found


def known_lakes(spark: SparkSession) -> list[LakeSetting]:
    """The lakes that a session's settings name."""
    known: dict[str, str] = dict(spark._jsparkSession.sessionState().conf().settings())
    found = []
    for setting, url in sorted(known.items()):
        catalog = re.fullmatch(r"spark\.sql\.catalog\.(\w+)\.url", setting)
        # Other catalogs may have a URL too, and a class.
        if catalog is not None and known.get(setting.removesuffix(".url"), SOURCE) == SOURCE:
            prefix = setting.removesuffix("url")
            options = {one.removeprefix(prefix): value for one, value in known.items() if one.startswith(prefix) and one != setting}
            found.append(LakeSetting(catalog[1], url, options))
    return found


# ---- connectors


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
