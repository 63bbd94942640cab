"""What clients are told about the store of a lake: its region and its address, and never a secret."""

from __future__ import annotations

from collections.abc import Mapping

from fileio.errors import InvalidConfig, Unsupported
from fileio.schemes import scheme_of
from fileio.store import FileIO

_SECRET_WORDS = ("secret", "token", "password", "credential", "access-key", "account-key", "connection-string", "sas", "private", "auth")
"""What a name that holds one of these says must not be told to everybody who may ask."""


def client_settings(fileio: FileIO, extra: Mapping[str, str]) -> dict[str, str]:
    """The properties of Iceberg's clients by which they reach the store, as defaults that a client may replace.

    Only options named here are told. Credentials are never among them: each client has its own.

    Args:
        fileio: the lake, by whose options this process reaches the store.
        extra: further properties, which win. For clients that reach the store by another address than this process.

    Raises:
        InvalidConfig: the name of a property sounds like a secret.
    """
    for name in extra:
        if any(word in name.lower() for word in _SECRET_WORDS):
            raise InvalidConfig(
                f"The property {name!r} may be a secret, and the server tells its properties to every client. Set it at the client."
            )
    return {**_store_settings(fileio), **extra}


def _store_settings(fileio: FileIO) -> dict[str, str]:
    try:
        described = fileio.describe()
    except Unsupported:
        return {}
    scheme, _ = scheme_of(described.url)
    options = described.options
    if scheme == "gs":
        return _named(options, {"endpoint": "gcs.service.host", "project": "gcs.project-id"})
    if scheme == "az":
        return _named(options, {"account": "adls.account-name"})
    if scheme != "s3":
        return {}
    told = _named(options, {"endpoint": "s3.endpoint", "region": "s3.region"})
    if "s3.region" in told:
        told["client.region"] = told["s3.region"]
    path_style = options.get("path_style")
    if path_style is None and "s3.endpoint" in told:
        path_style = True
    if path_style is not None:
        told["s3.path-style-access"] = _text(path_style)
        told["s3.force-virtual-addressing"] = _text(not path_style)
    if options.get("anonymous"):
        told["s3.anonymous"] = "true"
    return told


def _named(options: Mapping[str, object], names: Mapping[str, str]) -> dict[str, str]:
    return {name: str(options[option]) for option, name in names.items() if options.get(option) is not None}


def _text(value: object) -> str:
    return str(value).lower()
