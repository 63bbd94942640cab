"""What goes wrong outside of a table is one sentence with the next step, whichever command meets it."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest

import objcat
from devkit.handle import ServerHandle
from devkit.servers import ServerName
from tests.cli.commands import run

Start = Callable[[ServerName], ServerHandle]
COMMANDS = ("ls", "maintain", "doctor", "compact")
WRONG = {
    "bucket": ("no-such-bucket-at-all", {}, "Create the bucket, or correct the URL."),
    "secret": (None, {"secret_key": "not-the-secret"}, "Check options 'access_key', 'secret_key'"),
    "network": (None, {"endpoint": "http://127.0.0.1:9"}, "Check option 'endpoint', the proxy and the network."),
}


@pytest.fixture(scope="module")
def place(request: pytest.FixtureRequest) -> ServerHandle:
    servers: Start = request.getfixturevalue("servers")
    handle = servers("versitygw").fresh_bucket()
    objcat.connect(handle.url, handle.options).create_table("t", pa.schema([("id", pa.int64())]), key=["id"])
    return handle


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("what", WRONG)
def test_a_store_that_cannot_be_asked(place: ServerHandle, command: str, what: str) -> None:
    bucket, options, hint = WRONG[what]
    url = place.url if bucket is None else f"s3://{bucket}"
    given = [part for name, value in {**place.options, **options}.items() for part in ("--option", f"{name}={value}")]
    done = run(command, f"{url}/t" if command == "compact" else url, *given)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("objcat: ") and done.stderr.count("\n") == 1, done.stderr
    assert hint in done.stderr
    assert "not-the-secret" not in done.stderr


def test_the_version() -> None:
    done = run("--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"objcat {objcat.__version__}\n", "")
