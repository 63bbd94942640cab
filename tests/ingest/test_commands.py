"""The commands of `objcat ingest` as someone meets them who has never run one: answers, mistakes, and ends by Ctrl-C."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from typing import Any

import pytest

from devkit.paths import ROOT
from tests.ingest.shop import Shop
from tests.ingest.test_running import command

PAGE = ROOT / "docs" / "reference" / "json.md"
KEYS = {
    name: set(re.findall(r"`(\w+)`", keys))
    for name, keys in re.findall(r"^\| `ingest (\w+)` \| \w+ \| (.*) \|$", PAGE.read_text(), re.MULTILINE)
}


LATER = "ffffffff/1"


@pytest.fixture
def items(shop: Shop) -> Shop:
    shop.sql(
        "create table items(id int primary key, n int, price numeric(8, 2)); insert into items select i, 0, 1 from generate_series(1, 10) i"
    )
    shop.sql("create table notes(text text)")
    return shop


def json_of(shop: Shop, *arguments: str, status: int = 0) -> list[dict[str, Any]]:
    done = command(shop, *arguments, "--json")
    assert done.returncode == status, done.stdout + done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_the_page_on_json_names_what_is_printed(items: Shop) -> None:
    (checked,) = json_of(items, "check")
    assert set(checked) == KEYS["check"]
    *commits, end = json_of(items, "once", status=1)
    assert commits and all(set(commit) | set(end) >= KEYS["run"] for commit in commits)
    (status,) = json_of(items, "status")
    assert set(status) >= KEYS["status"]
    assert set(json_of(items, "resnapshot", "public.items")[0]) == KEYS["resnapshot"]
    assert set(json_of(items, "skip", LATER)[0]) == KEYS["skip"]
    assert set(KEYS) == {"check", "run", "once", "status", "resnapshot", "skip"}


def test_a_check_lists_what_would_be_followed_and_changes_nothing(items: Shop) -> None:
    items.sql("create schema other; create table other.t(id int primary key)")
    done = command(items, "check")
    assert done.returncode == 0 and "shop can be followed. It has not begun." in done.stdout
    (checked,) = json_of(items, "check")
    followed, without_key = checked["tables"]
    assert checked["not_followed"] == ["other.t"]
    assert (followed["name"], followed["target"], followed["key"], followed["exists"]) == ("public.items", "shop.items", ["id"], False)
    assert followed["columns"] == {"id": "int", "n": "int", "price": "decimal(8,2)"} and followed["problem"] is None
    assert "REPLICA IDENTITY FULL" in without_key["problem"]
    assert (
        items.sql("select count(*) from pg_publication")
        == items.sql("select count(*) from pg_replication_slots where slot_name = %s", items.slot)
        == [(0,)]
    )
    assert not items.lake_path.exists()
    json_of(items, "once", status=1)
    (checked,) = json_of(items, "check")
    assert checked["position"] is not None and [table["exists"] for table in checked["tables"]] == [True, False]


def test_a_check_names_what_is_wrong(items: Shop) -> None:
    items.config_path.write_text(items.config_path.read_text().replace("public\\\\.(.*)", "pubic\\\\.(.*)"))
    done = command(items, "check")
    assert done.returncode == 1 and "No table of 'shop' matches a route. It has public.items, public.notes." in done.stdout
    assert "not followed: public.items, public.notes" in done.stdout
    done = command(items, "once")
    assert done.returncode == 2 and "No table of the source matches a route" in done.stderr


def test_a_run_off_a_terminal_says_what_it_does(items: Shop) -> None:
    called = [sys.executable, "-m", "objcat.cli", "ingest", "run", str(items.config_path)]
    process = subprocess.Popen(called, cwd=ROOT, env={**os.environ, **items.environment}, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    said: list[str] = []
    while not said or "shop: follows; " not in said[-1]:
        said.append(process.stderr.readline())
        assert said[-1], said
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130 and "INFO objcat.ingest" in said[-1]
    done = command(items, "once")
    assert done.stdout.count("shop is at ") == 1 and "follows" not in done.stderr


def test_status_tells_what_was_asked_and_what_is_set_aside(items: Shop) -> None:
    json_of(items, "once", status=1)
    done = command(items, "resnapshot", "items")
    assert done.returncode == 2 and "No route of" in done.stderr and "did you mean 'public.items'? Nothing was asked." in done.stderr
    assert command(items, "resnapshot", "public.items").returncode == command(items, "skip", LATER).returncode == 0
    for text in ("0/1", "the last one"):
        done = command(items, "skip", text)
        assert done.returncode == 2 and f"{text!r} cannot be left out" in done.stderr and "Nothing was asked." in done.stderr
    said = command(items, "status").stdout
    assert "consistent: yes, without 1 table set aside" in said and "\nset aside: public.notes: " in said
    assert "waits: read public.items again\nwaits: leave out the transaction at FFFFFFFF/00000001\n" in said
    assert command(items, "skip", "FFFFFFFF/2").returncode == 0
    done = command(items, "skip", "FFFFFFFF/00000002", "--withdraw")
    assert done.returncode == 0 and "do not leave out the transaction at FFFFFFFF/00000002." in done.stdout
    done = command(items, "skip", "FFFFFFFF/00000002", "--withdraw")
    assert done.returncode == 2 and "These wait: FFFFFFFF/00000001. Nothing was asked." in done.stderr
    json_of(items, "once", status=1)
    (found,) = json_of(items, "status")
    (waiting,) = found["waiting"]
    assert re.fullmatch("leave out the transaction at FFFFFFFF/00000001, asked [0-9]+ min ago, which has not come so far", waiting)
    assert [(one["position"], one["passed"]) for one in found["skips"]] == [("FFFFFFFF/00000001", None)]
    (checked,) = json_of(items, "check")
    assert checked["position"] == found["position"] and f"shop is at {found['position']} (" in command(items, "status").stdout


def test_a_port_for_metrics_that_is_taken_is_named(items: Shop) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        items.configure(run=f"metrics_port = {port}")
        done = command(items, "run")
    assert (
        done.returncode == 2 and f"Metrics cannot be served at 127.0.0.1:{port}: Address already in use. Nothing was done." in done.stderr
    )


def test_a_key_of_a_route_that_is_no_column_is_refused(items: Shop) -> None:
    items.sql("alter table items replica identity full")
    items.configure(route='key = ["nr"]')
    done = command(items, "check")
    assert done.returncode == 1 and "names the column 'nr' in `key`, which public.items does not have: " in done.stdout
    done = command(items, "once")
    assert done.returncode == 2 and "No table can be followed." in done.stderr and items.lake.tables() == ["shop.ingest_dead"]


def test_ctrl_c_ends_it_after_a_commit(items: Shop) -> None:
    called = [sys.executable, "-m", "objcat.cli", "ingest", "run", str(items.config_path), "--json"]
    for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
        process = subprocess.Popen(
            called, cwd=ROOT, env={**os.environ, **items.environment}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        items.sql("update items set n = n + 1")
        while not json.loads(process.stdout.readline())["is_consistent"]:
            pass
        items.sql("update items set n = n + 1")
        process.send_signal(number)
        said, wrong = process.communicate(timeout=60)
        assert process.returncode == code and "Traceback" not in wrong, wrong
        assert json.loads(said.splitlines()[-1])["consistent"] is True
    items.once()
    assert items.differences("items") == []


def test_a_user_who_may_not_publish_is_told_what_the_owner_runs(items: Shop) -> None:
    assert command(items, "status").stdout == "shop has not begun. The first run reads all tables; `objcat ingest check` lists them.\n"
    role = f"reader_{items.name}"
    items.sql(f"create role {role} login replication; grant select on all tables in schema public to {role}")
    environment = {**items.environment, "SHOP": items.source_url.replace("user=objcat", f"user={role}")}
    called = [sys.executable, "-m", "objcat.cli", "ingest", "once", str(items.config_path)]
    try:
        done = subprocess.run(called, cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True, check=False)
        assert done.returncode == 2 and "permission denied for database" in done.stderr
        statement = done.stderr.strip().rpartition("The owner of the tables may run it instead: ")[2]
        items.sql(statement)
        done = subprocess.run(called, cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True, check=False)
        assert done.returncode == 1 and "set aside: public.notes: " in done.stderr, done.stderr
    finally:
        items.sql(f"drop owned by {role}; drop role {role}")
    assert items.differences("items") == []
