"""A store that cannot be reached is one sentence that names the place, the reason and the next step, the same for every cloud."""

from __future__ import annotations

import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pyarrow as pa
import pytest

import objcat
from fileio import Create, FileIOError, InvalidConfig, RetryPolicy, Unavailable, open_store
from tests.fileio.certificates import self_signed

REPOSITORY = Path(__file__).parents[2]
CLOUDS: Mapping[str, Callable[[str], tuple[str, Mapping[str, str]]]] = {
    "s3": lambda at: ("s3://bucket", {"endpoint": at, "region": "r", "anonymous": "yes"}),
    "gs": lambda at: ("gs://bucket", {"endpoint": at, "anonymous": "yes"}),
    "az": lambda at: ("az://bucket", {"endpoint": f"{at}/account", "anonymous": "yes"}),
}
PLACES = {"refuses": "http://127.0.0.1:9", "no such name": "http://no-such-host.invalid:9000"}
ONCE = RetryPolicy(attempts_max=1)


@pytest.fixture(scope="module")
def untrusted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server whose certificate nobody knows."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)
    server.daemon_threads = True
    server.handle_error = lambda *_: None  # type: ignore[method-assign]  # clients hang up on it
    context: ssl.SSLContext = self_signed(tmp_path_factory.mktemp("tls") / "authority.pem")
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield f"https://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.mark.parametrize("cloud", list(CLOUDS))
@pytest.mark.parametrize("place", list(PLACES))
def test_a_place_that_does_not_answer(cloud: str, place: str) -> None:
    url, options = CLOUDS[cloud](PLACES[place])
    with (
        open_store(url, options, policy=ONCE) as store,
        pytest.raises(Unavailable, match=r"cannot reach .*Check .*option 'endpoint'") as caught,
    ):
        store.read("k")
    assert PLACES[place].partition("//")[2] in str(caught.value)
    assert "Max retries" not in str(caught.value)


@pytest.mark.parametrize("cloud", list(CLOUDS))
def test_a_certificate_that_is_not_trusted_is_a_matter_of_configuration(cloud: str, untrusted: str) -> None:
    url, options = CLOUDS[cloud](untrusted)
    with open_store(url, options) as store:
        for call in (lambda: store.read("k"), lambda: store.put("k", b"x", Create())):
            with pytest.raises(InvalidConfig, match=r"certificate of .* is not trusted.*option 'ca_bundle'"):
                call()
        assert store.metrics.snapshot().retries == 0


@pytest.mark.parametrize("cloud", list(CLOUDS))
def test_nobody_is_told_of_a_write_of_unknown_outcome_when_a_table_is_created_nowhere(cloud: str) -> None:
    url, options = CLOUDS[cloud](PLACES["refuses"])
    lake = objcat.connect(url, options, policy=ONCE)
    with pytest.raises(FileIOError, match="cannot reach") as caught:
        lake.create_table("t", pa.schema([("id", pa.int64())]), key=["id"])
    assert "not known" not in str(caught.value)


@pytest.mark.parametrize("cloud", list(CLOUDS))
def test_the_command_says_one_sentence(cloud: str, untrusted: str) -> None:
    url, options = CLOUDS[cloud](untrusted)
    given = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
    done = subprocess.run(
        [sys.executable, "-m", "objcat.cli", "store-check", url, *given], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, len(done.stderr.strip().splitlines())) == (2, "", 1)
    assert "ca_bundle" in done.stderr
