"""TLS by nginx in front of the server, as the page on the catalog shows it."""

from __future__ import annotations

import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest
from pyiceberg.catalog.rest import RestCatalog

import objcat
from devkit.nginx import nginx_program
from fileio.options import Secret
from objcat.serve.settings import ServerSettings
from tests.fileio.certificates import self_signed
from tests.serve.clients import SECURE_PAGE, blocks_of_page, run_statements
from tests.serve.mirrors import MirroredRows, create
from tests.serve.serving import serving

TOKEN = "the-token-of-this-test"


@pytest.fixture
def lake(tmp_path: Path) -> objcat.Lake:
    lake = objcat.connect(tmp_path / "lake")
    for name in ("city.trips", "city.north.Zürich"):
        create(lake, name)
    MirroredRows(lake, "city.trips").append(1, 2)
    MirroredRows(lake, "city.north.Zürich").append(7)
    return lake


@contextmanager
def behind_nginx(url: str, folder: Path) -> Iterator[tuple[str, Path]]:
    """The address of nginx in front of a server, and the certificate to trust. Its block `server` is that of the page."""
    folder.mkdir()
    bundle = folder / "trusted.pem"
    self_signed(bundle)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    (block,) = blocks_of_page("nginx", url, page=SECURE_PAGE)
    for said, here in (
        ("listen 443", f"listen 127.0.0.1:{port}"),
        ("/etc/ssl/lake.pem", folder / "server.pem"),
        ("/etc/ssl/lake.key", folder / "server.pem"),
    ):
        assert said in block
        block = block.replace(said, str(here))
    paths = "".join(f"{kind}_temp_path {folder}/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    head = f"daemon off; pid {folder}/pid; error_log {folder}/log; events {{}}"
    (folder / "nginx.conf").write_text(f"{head}\nhttp {{ access_log off; {paths}\n{block}\n}}\n")
    process = subprocess.Popen([str(nginx_program()), "-c", str(folder / "nginx.conf"), "-p", str(folder)], stderr=subprocess.PIPE)
    try:
        for _ in range(100):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            assert process.poll() is None, process.stderr and process.stderr.read()
            time.sleep(0.05)
        yield f"https://127.0.0.1:{port}", bundle
    finally:
        process.terminate()
        process.communicate(timeout=30)


def test_clients_read_through_tls_with_a_token(lake: objcat.Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
        # They would win over what pyiceberg is told.
        monkeypatch.delenv(variable, raising=False)
    with (
        serving(lake, ServerSettings(cache_s=0, tokens=(Secret(TOKEN),))) as url,
        behind_nginx(url, tmp_path / "nginx") as (address, trusted),
    ):
        settings: dict[str, Any] = {"uri": address, "token": TOKEN, "ssl": {"cabundle": str(trusted)}}
        catalog = RestCatalog("lake", **settings)
        assert catalog.list_namespaces(("city",)) == [("city", "north")]
        assert catalog.load_table("city.trips").scan().to_arrow().column("id").to_pylist() == [1, 2]
        # The parts of a namespace are divided by %1F, which the proxy has to pass on as it is.
        assert catalog.load_table(("city", "north", "Zürich")).scan().to_arrow().column("id").to_pylist() == [7]
        (rows,) = run_statements(
            "duckdb",
            tmp_path / "duckdb",
            ["SELECT count(*) FROM lake.city.trips"],
            begin=[
                f"SET ca_cert_file = '{trusted}'",
                f"CREATE SECRET s (TYPE iceberg, TOKEN '{TOKEN}')",
                f"ATTACH '' AS lake (TYPE iceberg, ENDPOINT '{address}', SECRET s)",
            ],
        )
        assert rows == [[2]]


def test_what_the_proxy_passes_on(lake: objcat.Lake, tmp_path: Path) -> None:
    with (
        serving(lake, ServerSettings(cache_s=0, tokens=(Secret(TOKEN),))) as url,
        behind_nginx(url, tmp_path / "nginx") as (address, trusted),
        httpx.Client(verify=ssl.create_default_context(cafile=str(trusted)), trust_env=False) as session,
    ):
        assert session.get(f"{address}/health/ready").json()["status"] == "ok"
        assert session.get(f"{address}/v1/config").status_code == 401
        session.headers["Authorization"] = f"Bearer {TOKEN}"
        assert session.get(f"{address}/v1/config").status_code == 200
        place = f"{address}/v1/namespaces/city%1Fnorth/tables/Z%C3%BCrich"
        answer = session.get(place)
        assert answer.status_code == 200 and answer.headers["ETag"]
        assert session.get(place, headers={"If-None-Match": answer.headers["ETag"]}).status_code == 304
        assert session.get(f"{address}/v1/namespaces/city%2Fnorth/tables/t").status_code == 404
        refused = session.post(f"{address}/v1/namespaces/city/tables/trips", json={"requirements": [], "updates": []})
        assert (refused.status_code, refused.json()["error"]["type"]) == (403, "ForbiddenException")
    assert pa.table(lake.table("city.trips").scan().to_arrow()).num_rows == 2
