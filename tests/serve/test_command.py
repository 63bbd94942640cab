"""`objcat serve` as a user starts and ends it."""

from __future__ import annotations

import signal
import socket
from pathlib import Path

import httpx
import pytest

import objcat
from tests.cli.commands import run
from tests.serve.mirrors import SCHEMA, create
from tests.serve.serving import serving_command

TOKEN = "a-token-of-the-tests"


@pytest.fixture
def lake(tmp_path: Path) -> objcat.Lake:
    lake = objcat.connect(tmp_path / "lake")
    create(lake, "city.trips")
    return lake


def test_it_serves_until_it_is_told_to_end(lake: objcat.Lake, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    with serving_command(str(tmp_path / "lake"), "--token-file", str(tmp_path / "token"), "--access-log") as (url, process):
        assert url.startswith("http://127.0.0.1:")
        assert httpx.get(f"{url}/v1/config").status_code == 401
        with httpx.Client(base_url=url, headers={"Authorization": f"Bearer {TOKEN}"}) as client:
            assert client.get("/v1/namespaces/city/tables/trips").json()["metadata"]["current-snapshot-id"] == 1
            process.send_signal(signal.SIGTERM)
            output, errors = process.communicate(timeout=30)
    assert process.returncode == 0, errors
    assert output == "stopped\n"
    assert '"GET /v1/namespaces/city/tables/trips HTTP/1.1" 200' in errors
    assert TOKEN not in output + errors
    assert "Traceback" not in errors


def test_another_address_needs_a_token(tmp_path: Path) -> None:
    refused = run("serve", str(tmp_path), "--host", "0.0.0.0")
    assert refused.returncode == 2
    assert "--token-file" in refused.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--client", "s3.secret-access-key=hidden"], "may be a secret"),
        (["--client", "nothing"], "KEY=VALUE"),
        (["--token-file", "/nowhere/at/all"], "cannot be read"),
        (["--root-namespace", "a.b"], "without a dot"),
        (["--cache", "-1"], "cache_s"),
        (["--mirror", "--within", "5"], "wait less"),
    ],
)
def test_settings_that_do_not_fit_are_refused(tmp_path: Path, arguments: list[str], said: str) -> None:
    refused = run("serve", str(tmp_path), *arguments)
    assert refused.returncode == 2
    assert said in refused.stderr
    assert "hidden" not in refused.stderr


def test_a_short_token_of_the_environment_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OBJCAT_SERVE_TOKEN", "short")
    refused = run("serve", str(tmp_path))
    assert refused.returncode == 2
    assert "fewer than 16" in refused.stderr


def test_a_port_in_use_is_said(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        refused = run("serve", str(tmp_path), "--port", str(taken.getsockname()[1]))
    assert refused.returncode == 2
    assert "Address already in use" in refused.stderr


def test_a_table_without_a_lake_is_not_served(tmp_path: Path) -> None:
    objcat.create_table_at(tmp_path / "alone", SCHEMA, key=["id"])
    refused = run("serve", str(tmp_path / "alone"))
    assert refused.returncode == 2
    assert "table without a lake" in refused.stderr


def test_a_store_that_does_not_answer_is_said_before_the_start() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    options = [f"endpoint=http://127.0.0.1:{port}", "region=r", "access_key=a", "secret_key=hidden-secret", "connect_timeout_s=1"]
    refused = run("serve", "s3://bucket/lake", "--within", "2", *(part for option in options for part in ("-o", option)))
    assert refused.returncode == 2
    assert "hidden-secret" not in refused.stderr
    assert "Traceback" not in refused.stderr


def test_an_empty_lake_is_told(tmp_path: Path) -> None:
    with serving_command(str(tmp_path)) as (url, process):
        assert httpx.get(f"{url}/v1/namespaces").json()["namespaces"] == []
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
    assert "has no tables" in errors
    assert process.returncode == 0
