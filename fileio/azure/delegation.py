"""A SAS that reads below one folder of a container, signed by a user delegation key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from fileio.azure.client import AzureOptions, account_client, account_of, credential_of, resolve
from fileio.azure.errors import BY_CODE, BY_STATUS, error_code, error_status
from fileio.env import default_env
from fileio.errors import CredentialsError, FileIOError, InvalidConfig, Unavailable
from fileio.options import Secret, redact

CLOCKS_APART = timedelta(minutes=5)
"""The SAS begins so long ago, since clocks differ."""


def directory_sas(
    container: str, prefixes: Sequence[str], options: AzureOptions, *, lifetime_s: int, credential: Any = None
) -> tuple[Mapping[str, Secret | str], int]:
    """Options that open the container with a SAS for one folder, and when it ends. Raises as `delegate_reading`.

    The account needs a hierarchical namespace: without one, Azure has no folders, and a SAS could name a blob or the container only.

    credential: of azure-identity, instead of the one that the options name.
    """
    from azure.core.exceptions import AzureError
    from azure.storage.blob import BlobSasPermissions, generate_blob_sas

    url = f"az://{container}"
    settings = resolve(options)
    if len(prefixes) != 1:
        raise InvalidConfig(f"A SAS of {url} is for one folder, and {len(prefixes)} are asked for. Put them below one folder.")
    found = credential if credential is not None else credential_of(settings)
    if not hasattr(found, "get_token"):
        raise InvalidConfig(
            f"{url} is opened by a key, a SAS or a connection string. Only an identity of Entra ID can delegate what it may do: pass "
            "tenant_id, client_id and client_secret, a managed identity, or use_default_credential."
        )
    now = datetime.fromtimestamp(default_env().now_ms() / 1000, UTC)
    ends = now + timedelta(seconds=lifetime_s)
    try:
        with account_client(settings, found) as account:
            key = account.get_user_delegation_key(now - CLOCKS_APART, ends)
    except AzureError as error:
        raise _error_of(error, url, settings) from None
    name = account_of(settings)
    sas = generate_blob_sas(
        name,
        container,
        prefixes[0].strip("/"),
        user_delegation_key=key,
        permission=BlobSasPermissions(read=True),
        start=now - CLOCKS_APART,
        expiry=ends,
        is_directory=True,
    )
    if "sr=d" not in sas.split("&"):
        raise InvalidConfig("This azure-storage-blob makes no SAS of folders. Upgrade it: pip install -U 'objcat[azure]'.")
    return {"account": name, "sas_token": Secret(sas)}, int(ends.timestamp() * 1000)


def _error_of(error: Any, url: str, settings: AzureOptions) -> FileIOError:
    """The typed error of a request for a key. Texts of the SDK may hold signatures; ours are redacted."""
    from azure.core.exceptions import ClientAuthenticationError

    status, code = error_status(error), error_code(error)
    text = redact(f"{type(error).__name__}: {error.message}".split("\n", 1)[0], settings.secrets)
    where = f"There is no user delegation key of the account of {url}."
    if status is None and isinstance(error, ClientAuthenticationError):
        return CredentialsError(f"{where} There are no usable credentials ({text}). Sign in with az login, or pass other options.")
    if status is None or status >= 500:
        return Unavailable(f"{where} There was no usable answer ({text}). Try again.")
    kind, _ = BY_CODE.get(code or "") or BY_STATUS.get(status) or (FileIOError, "")
    return kind(
        f"{where} The store refused it ({status} {code or 'without a code'}). Grant 'Storage Blob Delegator' and a role that reads."
    )
