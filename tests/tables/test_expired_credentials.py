"""Credentials that expire while a table is written, and come back: the report is right, and nothing that was committed is lost."""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

import pyarrow as pa
import pytest

import objcat
from devkit.fault_proxy import Fault, FaultProxy
from devkit.handle import ServerHandle
from devkit.servers import ServerName
from fileio.contract import Written
from fileio.errors import CredentialsError, FileIOError, NotWritten, PermissionDenied
from fileio.registry import open_store
from fileio.store import FileIO
from fileio.write_outcomes import RetryPolicy
from objcat.errors import CommitUnknown
from objcat.timeline.rollback import CommittedAt, RolledBackAt

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.float64())])
QUICK = RetryPolicy(attempts_max=3, backoff_ms_first=1, backoff_ms_max=2)
FOREVER = 1_000_000

EXPIRED: dict[ServerName, tuple[int, bytes, tuple[tuple[str, str], ...]]] = {
    "versitygw": (400, b"<Error><Code>ExpiredToken</Code><Message>The provided token has expired.</Message></Error>", ()),
    "azurite": (
        403,
        b"<Error><Code>AuthenticationFailed</Code><Message>Signed expiry time is over.</Message></Error>",
        (("x-ms-error-code", "AuthenticationFailed"),),
    ),
    "fake-gcs-server": (401, b'{"error": {"code": 401, "message": "Invalid Credentials"}}', ()),
}


def opened(handle: ServerHandle) -> FileIO:
    return open_store(handle.url + "/lake", handle.options, policy=QUICK)


@pytest.mark.parametrize("server", EXPIRED)
@pytest.mark.parametrize("lost", [False, True], ids=["at once", "with the answer to the last request"])
def test_every_moment_of_a_write(
    servers: Callable[[ServerName], ServerHandle],
    fault_proxy: Callable[[ServerHandle], tuple[FaultProxy, ServerHandle]],
    server: ServerName,
    lost: bool,
) -> None:
    """lost: the request before the first refused one takes effect, and its answer does not arrive."""
    proxy, through = fault_proxy(servers(server).fresh_bucket())
    code, body, headers = EXPIRED[server]
    store = opened(through)
    table = objcat.Lake(store).create_table("t", SCHEMA, key=["id"], index=objcat.BucketIndex(1))
    table.upsert([{"id": 0, "v": 0.0}])
    expected = {0: 0.0}
    reports: list[str] = []
    refusals: list[FileIOError] = []
    moment = 0
    while not reports or reports[-1] != "written" or (lost and moment < 4):
        moment += 1
        proxy.clear()
        expired = Fault("status_before", nth=moment + lost, times=FOREVER, code=code, body=body, headers=headers)
        proxy.plan(*([Fault("drop_after", nth=moment)] if lost else []), expired)
        row = {"id": moment, "v": float(moment)}
        txn = None
        try:
            table.upsert([row])
            reports.append("written")
        except CommitUnknown as unknown:
            reports.append("unknown")
            txn = unknown.txn
        except FileIOError as error:
            reports.append("refused")
            refusals.append(error)
        proxy.clear()
        if txn is not None:
            match table.resolve(txn):
                case CommittedAt():
                    expected[moment] = row["v"]
                case RolledBackAt():
                    pass
        elif reports[-1] == "written":
            expected[moment] = row["v"]
        with opened(through) as renewed:
            handles = (table, objcat.Lake(renewed).table("t"))
            found_by = [{found["id"]: found["v"] for found in handle.scan().to_arrow().to_pylist()} for handle in handles]
        assert found_by == [expected, expected], reports
        table.upsert([{"id": 0, "v": -float(moment)}])
        expected[0] = -float(moment)
        assert moment < 20
    assert refusals
    assert all(isinstance(error, (CredentialsError, NotWritten) if lost else CredentialsError) for error in refusals), refusals
    assert all("credentials" in str(error) or "renew" in str(error) for error in refusals), refusals
    assert ("unknown" in reports) == lost
    assert objcat.Lake(store).table("t").scan().count() == len(expected)
    store.close()


def sas_token(handle: ServerHandle, *, minutes: int) -> str:
    """A token for all that a table needs, which expires so many minutes from now."""
    from azure.storage.blob import ContainerSasPermissions, generate_container_sas

    return generate_container_sas(
        handle.options["account"],
        handle.url.removeprefix("az://"),
        account_key=handle.options["account_key"],
        permission=ContainerSasPermissions.from_string("racwdl"),
        expiry=dt.datetime.now(dt.UTC) + dt.timedelta(minutes=minutes),
    )


@pytest.mark.parametrize("work", ["upsert", "scan"])
def test_a_real_token_in_a_file_expires_at_every_moment_and_is_renewed_under_the_open_table(
    servers: Callable[[ServerName], ServerHandle],
    fault_proxy: Callable[[ServerHandle], tuple[FaultProxy, ServerHandle]],
    tmp_path: Path,
    work: str,
) -> None:
    direct = servers("azurite").fresh_bucket()
    proxy, through = fault_proxy(direct)
    held = tmp_path / "token"
    good, expired = sas_token(direct, minutes=30), sas_token(direct, minutes=-30)
    held.write_text(good)
    store = open_store(through.url + "/lake", {"endpoint": through.options["endpoint"], "sas_token_file": str(held)}, policy=QUICK)
    table = objcat.Lake(store).create_table("t", SCHEMA, key=["id"], index=objcat.BucketIndex(1))
    expected = {}
    for number in range(4):
        table.upsert([{"id": number, "v": 0.0}])
        expected[number] = 0.0
    refused = moment = asked = 0
    done = renewed = False
    changing = threading.Lock()

    def expire(_method: str, _path: str, _query: str, _headers: Mapping[str, str]) -> bool:
        """With the request of the moment; it is relayed as it is."""
        nonlocal asked
        with changing:
            asked += 1
            if asked == moment and not renewed:
                held.write_text(expired)
        return False

    def renew() -> None:
        """For good: requests that are still under way, as others of the call have failed, let it expire no more."""
        nonlocal renewed
        with changing:
            renewed = True
            held.write_text(good)

    while not done:
        moment, asked, renewed = moment + 1, 0, False
        proxy.clear()
        proxy.plan(Fault("drop_before", expire))
        try:
            if work == "upsert":
                table.upsert([{"id": 100 + moment, "v": 1.0}])
                expected[100 + moment] = 1.0
            else:
                assert table.scan().count() == len(table.scan().to_arrow()) == len(expected)
            done = asked < moment
        except (CredentialsError, PermissionDenied):
            refused += 1
        except CommitUnknown as unknown:
            renew()
            if isinstance(table.resolve(unknown.txn), CommittedAt):
                expected[100 + moment] = 1.0
        renew()
        proxy.clear()
        assert {row["id"]: row["v"] for row in table.scan().to_arrow().to_pylist()} == expected, moment
        assert moment < 30
    assert refused > 0
    assert [result.error for result in store.delete([f"batch/{number}" for number in range(3)])] == [None] * 3
    assert isinstance(store.copy(next(iter(store.list_keys())), "copied"), Written)
    store.close()
