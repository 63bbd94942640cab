"""Every route of the catalog, by HTTP and without a socket: names, tables, pages, tags, errors, hostile requests."""

from __future__ import annotations

import json
import logging
import threading
from typing import Any
from urllib.parse import quote, quote_from_bytes, urlencode

import httpx
import hypothesis
import pytest
from hypothesis import strategies as st

import objcat
from fileio.errors import InvalidConfig
from fileio.memory import MemoryBackend
from fileio.options import Secret
from fileio.store import FileIO
from fileio.testing.faults import Fault, FaultyBackend, Request, Rule, Rules
from fileio.write_outcomes import RetryPolicy
from objcat.serve.app import create_app
from objcat.serve.settings import ServerSettings
from tests.effort import effort
from tests.serve.http import AppClient
from tests.serve.mirrors import MirroredRows, contents, create, create_plain, lake_with

FRESH = ServerSettings(cache_s=0)


def client_of(lake: objcat.Lake, settings: ServerSettings = FRESH) -> AppClient:
    return AppClient(create_app(lake.fileio, settings))


@pytest.fixture
def lake() -> objcat.Lake:
    lake = lake_with("city.trips", "city.north.drivers", "notes")
    lake.namespaces.set_properties("city", {"owner": "ops"})
    return lake


@pytest.fixture
def client(lake: objcat.Lake) -> AppClient:
    return client_of(lake)


def error_of(answer: httpx.Response, status: int, kind: str) -> str:
    """The message of an error, which has the shape of the specification."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    body = answer.json()
    assert list(body) == ["error"]
    assert body["error"]["code"] == status
    assert body["error"]["type"] == kind
    assert "Traceback" not in answer.text
    message: str = body["error"]["message"]
    return message


# ---- config


def test_config_names_what_is_served_and_tells_no_secret(client: AppClient) -> None:
    body = client.get("/v1/config", params={"warehouse": "any"}).json()
    assert body["overrides"] == {}
    assert "GET /v1/{prefix}/namespaces/{namespace}/tables/{table}" in body["endpoints"]
    assert all(endpoint.startswith(("GET ", "HEAD ")) or endpoint.endswith("/metrics") for endpoint in body["endpoints"])


def test_config_tells_clients_how_to_reach_the_store() -> None:
    options = {"endpoint": "http://127.0.0.1:9", "region": "eu-central-1", "access_key": "AKIAEXAMPLE", "secret_key": "verysecretvalue"}
    lake = objcat.connect("s3://bucket/lake", options)
    settings = ServerSettings(client_properties={"s3.endpoint": "https://store.example"})
    answer = client_of(lake, settings).get("/v1/config")
    assert answer.json()["defaults"] == {
        "s3.endpoint": "https://store.example",
        "s3.region": "eu-central-1",
        "client.region": "eu-central-1",
        "s3.path-style-access": "true",
        "s3.force-virtual-addressing": "false",
    }
    assert "AKIAEXAMPLE" not in answer.text
    assert "verysecretvalue" not in answer.text


@pytest.mark.parametrize("name", ["s3.secret-access-key", "s3.session-token", "s3.access-key-id", "adls.account-key", "credential"])
def test_a_property_that_sounds_like_a_secret_is_refused(lake: objcat.Lake, name: str) -> None:
    with pytest.raises(InvalidConfig, match="may be a secret"):
        create_app(lake.fileio, ServerSettings(client_properties={name: "x"}))


# ---- namespaces


def test_namespaces_are_a_tree(client: AppClient) -> None:
    assert client.get("/v1/namespaces").json()["namespaces"] == [["city"], ["default"]]
    assert client.get("/v1/namespaces", params={"parent": "city"}).json()["namespaces"] == [["city", "north"]]
    assert client.get("/v1/namespaces", params={"parent": ""}).json()["namespaces"] == [["city"], ["default"]]
    assert client.get("/v1/namespaces", params={"parent": "city\x1fnorth"}).json()["namespaces"] == []
    assert client.get("/v1/namespaces/city").json() == {"namespace": ["city"], "properties": {"owner": "ops"}}
    assert client.get("/v1/namespaces/city%1Fnorth").json() == {"namespace": ["city", "north"], "properties": {}}
    assert client.head("/v1/namespaces/city%1fnorth").status_code == 204
    assert client.head("/v1/namespaces/south").status_code == 404
    assert "'south'" in error_of(client.get("/v1/namespaces/south"), 404, "NoSuchNamespaceException")
    error_of(client.get("/v1/namespaces", params={"parent": "south"}), 404, "NoSuchNamespaceException")


def test_names_have_no_case(client: AppClient) -> None:
    assert client.get("/v1/namespaces/CITY").json()["namespace"] == ["city"]
    assert client.get("/v1/namespaces/City/tables/TRIPS").status_code == 200


def test_a_dot_is_no_separator(client: AppClient) -> None:
    error_of(client.get("/v1/namespaces/city.north"), 404, "NoSuchNamespaceException")
    error_of(client.get("/v1/namespaces/city/tables/north.drivers"), 404, "NoSuchTableException")


def test_a_table_in_an_unknown_namespace_is_a_missing_table(client: AppClient) -> None:
    """Iceberg in Java looks for metadata tables, such as `city.trips.snapshots`, only after a missing table."""
    error_of(client.get("/v1/namespaces/city%1Ftrips/tables/snapshots"), 404, "NoSuchTableException")


def test_tables_without_a_namespace_have_one_here(lake: objcat.Lake) -> None:
    client = client_of(lake, ServerSettings(cache_s=0, root_namespace="lake"))
    assert client.get("/v1/namespaces").json()["namespaces"] == [["city"], ["lake"]]
    assert client.get("/v1/namespaces/lake/tables").json()["identifiers"] == [{"namespace": ["lake"], "name": "notes"}]
    assert client.get("/v1/namespaces/lake").json() == {"namespace": ["lake"], "properties": {}}
    assert client.get("/v1/namespaces/lake/tables/notes").status_code == 200
    error_of(client.get("/v1/namespaces/default/tables/notes"), 404, "NoSuchTableException")


def test_a_namespace_of_the_lake_is_never_mixed_with_them(lake: objcat.Lake, caplog: pytest.LogCaptureFixture) -> None:
    create(lake, "default.notes")
    client = client_of(lake)
    with caplog.at_level(logging.WARNING, "objcat.serve"):
        assert client.get("/v1/namespaces/default/tables").json()["identifiers"] == [{"namespace": ["default"], "name": "notes"}]
    assert "--root-namespace" in caplog.text
    found = client.get("/v1/namespaces/default/tables/notes").json()["metadata"]
    assert found["properties"]["objcat.table"] == lake.table("default.notes").id
    lake.drop_table("default.notes")
    error_of(client.get("/v1/namespaces/default/tables/notes"), 404, "NoSuchTableException")


def test_a_lake_without_anything_is_empty() -> None:
    client = client_of(lake_with())
    assert client.get("/v1/namespaces").json() == {"namespaces": [], "next-page-token": None}
    error_of(client.get("/v1/namespaces/default/tables"), 404, "NoSuchNamespaceException")


# ---- listings


def test_all_tables_of_a_namespace_and_no_others(client: AppClient, lake: objcat.Lake) -> None:
    lake.drop_table("notes")
    create(lake, "city.Äpfel")
    assert client.get("/v1/namespaces/city/tables").json() == {
        "identifiers": [{"namespace": ["city"], "name": "trips"}, {"namespace": ["city"], "name": "Äpfel"}],
        "next-page-token": None,
    }
    assert client.get("/v1/namespaces").json()["namespaces"] == [["city"]]
    assert client.get("/v1/namespaces/city/views").json() == {"identifiers": [], "next-page-token": None}
    error_of(client.get("/v1/namespaces/south/tables"), 404, "NoSuchNamespaceException")
    error_of(client.get("/v1/namespaces/south/views"), 404, "NoSuchNamespaceException")


def pages(client: AppClient, path: str, key: str, **query: Any) -> list[list[Any]]:
    found, token = [], ""
    while True:
        body = client.get(path, params={**query, "pageToken": token}).json()
        found.append(body[key])
        token = body["next-page-token"]
        if token is None:
            return found


def test_pages_have_every_name_once_while_others_come_and_go(client: AppClient, lake: objcat.Lake) -> None:
    for number in range(7):
        create(lake, f"many.t{number}")
        create(lake, f"many.n{number}.t")
    listed = pages(client, "/v1/namespaces/many/tables", "identifiers", pageSize=3)
    assert [[table["name"] for table in page] for page in listed] == [["t0", "t1", "t2"], ["t3", "t4", "t5"], ["t6"]]
    assert [len(page) for page in pages(client, "/v1/namespaces", "namespaces", pageSize=2, parent="many")] == [2, 2, 2, 1]
    assert [len(page) for page in pages(client, "/v1/namespaces/many/tables", "identifiers")] == [7]
    first = client.get("/v1/namespaces/many/tables", params={"pageSize": 3}).json()
    lake.drop_table("many.t2")
    create(lake, "many.t25")
    following = client.get("/v1/namespaces/many/tables", params={"pageSize": 3, "pageToken": first["next-page-token"]}).json()
    assert [table["name"] for table in following["identifiers"]] == ["t25", "t3", "t4"]


@pytest.mark.parametrize("query", [{"pageSize": "0"}, {"pageSize": "-1"}, {"pageSize": "a"}, {"pageSize": "9" * 99}, {"pageToken": "%%"}])
def test_wrong_pages_are_refused(client: AppClient, query: dict[str, str]) -> None:
    error_of(client.get("/v1/namespaces/city/tables", params=query), 400, "BadRequestException")


# ---- tables


def test_the_newest_metadata_is_in_the_answer(client: AppClient, lake: objcat.Lake) -> None:
    trips = MirroredRows(lake, "city.trips")
    for number in range(3):
        trips.append(number)
        body = client.get("/v1/namespaces/city/tables/trips").json()
        assert body["metadata-location"] == f"{trips.table.url}/metadata/v{trips.snapshot_id}.metadata.json"
        assert body["metadata"]["current-snapshot-id"] == trips.snapshot_id
        assert body["metadata"]["snapshots"][-1]["snapshot-id"] == trips.snapshot_id
        assert len(body["metadata"]["snapshots"]) > number
        assert body["config"] == {}
    assert client.head("/v1/namespaces/city/tables/trips").status_code == 204
    assert client.head("/v1/namespaces/city/tables/none").status_code == 404


def test_snapshots_of_refs_only(client: AppClient, lake: objcat.Lake) -> None:
    trips = MirroredRows(lake, "city.trips")
    trips.append(1)
    trips.append(2)
    every = client.get("/v1/namespaces/city/tables/trips", params={"snapshots": "all"})
    refs = client.get("/v1/namespaces/city/tables/trips", params={"snapshots": "refs"})
    assert [snapshot["snapshot-id"] for snapshot in refs.json()["metadata"]["snapshots"]] == [trips.snapshot_id]
    assert len(every.json()["metadata"]["snapshots"]) > 1
    assert refs.json()["metadata"]["snapshot-log"] == every.json()["metadata"]["snapshot-log"]
    assert every.headers["etag"] != refs.headers["etag"]
    error_of(client.get("/v1/namespaces/city/tables/trips", params={"snapshots": "some"}), 400, "BadRequestException")


def test_a_tag_saves_the_answer_until_the_next_slot(client: AppClient, lake: objcat.Lake) -> None:
    path = "/v1/namespaces/city/tables/trips"
    etag = client.get(path).headers["etag"]
    for sent in (etag, f'"other", {etag}', f"W/{etag}"):
        same = client.get(path, headers={"If-None-Match": sent})
        assert (same.status_code, same.content, same.headers["etag"]) == (304, b"", etag)
    assert client_of(lake).get(path).headers["etag"] == etag, "another server gives the same tag"
    MirroredRows(lake, "city.trips").append(1)
    newer = client.get(path, headers={"If-None-Match": etag})
    assert newer.status_code == 200
    assert newer.headers["etag"] != etag


def test_a_table_without_a_mirror_says_how_to_get_one(client: AppClient, lake: objcat.Lake) -> None:
    create_plain(lake, "city.plain")
    message = error_of(client.get("/v1/namespaces/city/tables/plain"), 404, "NoSuchTableException")
    assert "'mirrors': 'iceberg'" in message
    assert client.head("/v1/namespaces/city/tables/plain").status_code == 404
    assert client.get("/v1/namespaces/city/tables/trips").status_code == 200
    lake.table("city.trips").set_properties({"mirrors": "delta"})
    error_of(client.get("/v1/namespaces/city/tables/trips"), 404, "NoSuchTableException")


def test_a_mirror_that_is_not_there_yet_says_so(client: AppClient, lake: objcat.Lake) -> None:
    lake.fileio.delete([key for key in lake.fileio.list_keys() if "/metadata/" in key])
    message = error_of(client.get("/v1/namespaces/city/tables/trips"), 404, "NoSuchTableException")
    assert "objcat mirror" in message


def test_a_dropped_table_is_gone(client: AppClient, lake: objcat.Lake) -> None:
    assert client.get("/v1/namespaces/city/tables/trips").status_code == 200
    lake.rename_table("city.trips", "city.journeys")
    error_of(client.get("/v1/namespaces/city/tables/trips"), 404, "NoSuchTableException")
    assert client.get("/v1/namespaces/city/tables/journeys").status_code == 200
    lake.drop_table("city.journeys")
    error_of(client.get("/v1/namespaces/city/tables/journeys"), 404, "NoSuchTableException")


def test_tables_that_share_a_log_have_folders_of_their_own(client: AppClient, lake: objcat.Lake) -> None:
    for name in ("bank.accounts", "bank.entries"):
        create(lake, name, shared_log="bank")
    MirroredRows(lake, "bank.entries").append(1)
    MirroredRows(lake, "bank.accounts").append(2)
    ids = [lake.table(f"bank.{name}").id for name in ("accounts", "entries")]
    answers = [client.get(f"/v1/namespaces/bank/tables/{name}").json() for name in ("accounts", "entries")]
    assert [answer["metadata"]["properties"]["objcat.table"] for answer in answers] == ids
    assert f"/mirrors/{ids[1]}/metadata/" in answers[1]["metadata-location"]


def test_within_the_time_of_the_cache_the_store_is_not_asked(lake: objcat.Lake) -> None:
    client = client_of(lake, ServerSettings(cache_s=1000))
    etag = client.get("/v1/namespaces/city/tables/trips").headers["etag"]
    MirroredRows(lake, "city.trips").append(1)
    create(lake, "city.late")
    assert client.get("/v1/namespaces/city/tables/trips").headers["etag"] == etag
    assert len(client.get("/v1/namespaces/city/tables").json()["identifiers"]) == 1
    assert client_of(lake).get("/v1/namespaces/city/tables/trips").headers["etag"] != etag


# ---- what is refused


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/namespaces"),
        ("DELETE", "/v1/namespaces/city"),
        ("POST", "/v1/namespaces/city/properties"),
        ("POST", "/v1/namespaces/city/tables"),
        ("POST", "/v1/namespaces/city/register"),
        ("POST", "/v1/namespaces/city/tables/trips"),
        ("DELETE", "/v1/namespaces/city/tables/trips?purgeRequested=true"),
        ("POST", "/v1/tables/rename"),
        ("POST", "/v1/transactions/commit"),
        ("POST", "/v1/namespaces/city/views"),
        ("DELETE", "/v1/namespaces/city/views/v"),
        ("PUT", "/v1/anything"),
        ("PATCH", "/v1/anything"),
    ],
)
def test_every_change_is_refused_and_says_how_to_write(client: AppClient, lake: objcat.Lake, method: str, path: str) -> None:
    before = contents(lake)
    message = error_of(client.request(method, path, content=b'{"namespace": ["x"]}'), 403, "ForbiddenException")
    assert message.startswith("Nothing was changed")
    assert "objcat" in message
    assert contents(lake) == before


def test_what_is_not_offered_says_so(client: AppClient) -> None:
    error_of(client.post("/v1/namespaces/city/tables/trips/plan", json={}), 406, "UnsupportedOperationException")
    error_of(client.get("/v1/namespaces/city/tables/trips/credentials"), 406, "UnsupportedOperationException")
    assert client.post("/v1/oauth/tokens", data={"grant_type": "client_credentials"}).json()["error"] == "unsupported_grant_type"
    error_of(client.get("/v1/nothing"), 404, "NotFoundException")
    error_of(client.get("/"), 404, "NotFoundException")
    error_of(client.delete("/health"), 405, "BadRequestException")


def test_reports_are_taken(client: AppClient) -> None:
    assert client.post("/v1/namespaces/city/tables/trips/metrics", json={"report-type": "scan-report"}).status_code == 204
    error_of(client.post("/v1/namespaces/city/tables/none/metrics", json={}), 404, "NoSuchTableException")


def test_delegated_access_is_asked_for_in_vain(client: AppClient) -> None:
    answer = client.get("/v1/namespaces/city/tables/trips", headers={"X-Iceberg-Access-Delegation": "vended-credentials"})
    assert answer.json()["config"] == {}
    assert "storage-credentials" not in answer.json()


# ---- hostile requests


@pytest.mark.parametrize(
    "path",
    [
        "/v1/namespaces/..",
        "/v1/namespaces/%2E%2E",
        "/v1/namespaces/..%2F..%2Fetc",
        "/v1/namespaces/city%2Ftables%2Ftrips",
        "/v1/namespaces/city/tables/..%2F..%2F_catalog",
        "/v1/namespaces/city/tables/%2e%2e%2fmetadata",
        "/v1/namespaces/city/tables/trips%00",
        "/v1/namespaces/%1F",
        "/v1/namespaces/city%1F",
        "/v1/namespaces/%1Fcity",
        "/v1/namespaces/city/tables/%F0%9F%90%98",
        "/v1/namespaces/city/tables/" + "a" * 20_000,
        "/v1/namespaces/" + "a%1F" * 2_000 + "a",
        "/v1/namespaces/city/tables/tr%25ips",
        "/v1/namespaces/city/tables/<script>",
        "/v1/namespaces/city/tables/trips;x=1",
        "/v1/namespaces/city/tables/'%20OR%201=1",
        "/v1/namespaces/city/tables/",
        "/v1/namespaces//tables",
        "/v1//namespaces",
        "/v1/namespaces/_catalog",
        "/v1/namespaces/tables/tables/city",
    ],
)
def test_hostile_names_are_not_found(client: AppClient, path: str) -> None:
    answer = client.get_raw(path)
    assert answer.status_code == 404, answer.text
    assert answer.json()["error"]["type"] in ("NoSuchNamespaceException", "NoSuchTableException", "NotFoundException")
    assert len(answer.content) < 1000
    assert "Traceback" not in answer.text


def test_bytes_that_are_no_text_are_refused(client: AppClient) -> None:
    error_of(client.get_raw("/v1/namespaces/%FF%FE"), 400, "BadRequestException")
    error_of(client.get_raw("/v1/namespaces/city/tables/%C3%28"), 400, "BadRequestException")


def test_a_body_beyond_the_limit_is_refused(lake: objcat.Lake) -> None:
    client = client_of(lake, ServerSettings(body_bytes_max=100))
    assert client.post("/v1/namespaces/city/tables/trips/metrics", content=b"x" * 100).status_code == 204
    error_of(client.post("/v1/namespaces/city/tables/trips/metrics", content=b"x" * 101), 413, "BadRequestException")


_SEGMENTS = st.one_of(
    st.sampled_from(["v1", "config", "namespaces", "city", "tables", "trips", "views", "metrics", "credentials", "..", "%1F", "%2F", ""]),
    st.text(max_size=20).map(lambda text: quote(text, safe="")),
    st.binary(max_size=8).map(quote_from_bytes),
)
_QUERIES = st.dictionaries(st.sampled_from(["parent", "pageToken", "pageSize", "snapshots", "warehouse"]), st.text(max_size=20), max_size=3)


@hypothesis.settings(max_examples=effort(60, with_all=3000))
@hypothesis.given(
    method=st.sampled_from(["GET", "GET", "GET", "HEAD", "POST", "DELETE", "PUT", "OPTIONS"]),
    segments=st.lists(_SEGMENTS, max_size=7),
    query=_QUERIES,
    body=st.binary(max_size=50),
)
def test_whatever_is_sent_gets_an_answer(method: str, segments: list[str], query: dict[str, str], body: bytes) -> None:
    """No request fails in the server, and every error has the shape of the specification."""
    path = f"/{'/'.join(segments)}?{urlencode(query, errors='surrogatepass')}"
    answer = _CLIENT.request(method, httpx.URL(scheme="http", host="catalog", raw_path=path.encode("ascii")), content=body)
    assert answer.status_code < 500, (method, path)
    if answer.status_code >= 400 and method != "HEAD" and "oauth" not in path:
        assert answer.json()["error"]["code"] == answer.status_code


_CLIENT = client_of(lake_with("city.trips", "notes"), ServerSettings(cache_s=1000))
"""Made once, since examples change nothing."""


def test_no_request_writes(lake: objcat.Lake) -> None:
    """Rights to read are enough for a server."""
    kinds = set[str]()
    create_plain(lake, "city.plain")
    backend = FaultyBackend(lake.fileio._bare, before=lambda request: kinds.add(request.kind))
    client = client_of(objcat.Lake(FileIO(backend)))
    for path in ("/health/ready", "/v1/config", "/v1/namespaces", "/v1/namespaces/city", "/v1/namespaces/city/tables", "/metrics"):
        assert client.get(path).status_code == 200
    for table, status in (("trips", 200), ("plain", 404), ("none", 404)):
        assert client.get(f"/v1/namespaces/city/tables/{table}").status_code == status
    assert client.post("/v1/namespaces/city/tables/trips/metrics", json={}).status_code == 204
    assert client.delete("/v1/namespaces/city/tables/trips").status_code == 403
    assert kinds <= {"get", "head", "list"}
    assert "get" in kinds


# ---- tokens


def test_a_token_is_needed_where_one_is_set(lake: objcat.Lake) -> None:
    tokens = tuple(Secret(text) for text in ("first-token-of-two", "second-token-of-two"))
    client = client_of(lake, ServerSettings(tokens=tokens))
    for header in ("", "Bearer wrong", "Basic first-token-of-two", "Bearer", "first-token-of-two", "Bearer first-token-of-tw", "Bearer ä"):
        answer = client.get("/v1/config", headers={"Authorization": header.encode()})
        message = error_of(answer, 401, "NotAuthorizedException")
        assert answer.headers["www-authenticate"] == "Bearer"
        assert "first" not in message
    error_of(client.post("/v1/namespaces", json={}), 401, "NotAuthorizedException")
    error_of(client.get("/metrics"), 401, "NotAuthorizedException")
    assert client.get("/health").status_code == 200
    for token in ("first-token-of-two", "second-token-of-two"):
        assert client.get("/v1/namespaces", headers={"Authorization": f"Bearer {token}"}).status_code == 200
        assert client.get("/metrics", headers={"Authorization": f"bearer {token}"}).status_code == 200


def test_a_short_token_is_refused() -> None:
    with pytest.raises(objcat.errors.InvalidInput, match="fewer than 16"):
        ServerSettings(tokens=(Secret("short"),))


# ---- failures, health, metrics


def test_health_and_metrics(client: AppClient) -> None:
    assert client.get("/health").json()["status"] == "ok"
    assert client.get("/health/ready").status_code == 200
    client.get("/v1/namespaces/city/tables/trips")
    client.get("/v1/namespaces/city/tables/none")
    client.delete("/v1/namespaces/city")
    answer = client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    lines = answer.text.splitlines()
    load = 'route="/v1/namespaces/{namespace}/tables/{table}",method="GET"'
    assert f'objcat_serve_requests_total{{{load},status="200"}} 1' in lines
    assert f'objcat_serve_requests_total{{{load},status="404"}} 1' in lines
    assert 'objcat_serve_requests_total{route="refused",method="DELETE",status="403"} 1' in lines
    assert 'objcat_serve_table_slot{table="city.trips"} 0' in lines
    assert 'objcat_serve_mirror_lag_slots{table="city.trips"} 0' in lines
    assert "objcat_serve_tables 3" in lines
    assert 'objcat_serve_request_seconds_count{route="/health"} 1' in lines
    assert 'objcat_serve_request_seconds_bucket{route="/health",le="+Inf"} 1' in lines


def test_damage_is_an_error_without_details(client: AppClient, lake: objcat.Lake, caplog: pytest.LogCaptureFixture) -> None:
    key = next(key for key in lake.fileio.list_keys("tables/city.trips") if key.endswith("v1.metadata.json"))
    lake.fileio.put(key, json.dumps([1]).encode())
    message = error_of(client.get("/v1/namespaces/city/tables/trips"), 500, "InternalServerError")
    assert key not in message
    assert "objcat mirror" in message
    assert key in caplog.text


def test_a_store_that_does_not_answer_is_told_from_a_table_that_is_not_there(lake: objcat.Lake) -> None:
    backend = FaultyBackend(MemoryBackend("faulty"), Rules([Rule(fault=Fault.BEFORE, kinds=frozenset({"get"}), times=10**9)]))
    client = client_of(objcat.Lake(FileIO(backend, policy=RetryPolicy(attempts_max=1))))
    for path in ("/v1/namespaces", "/v1/namespaces/city/tables/trips", "/health/ready"):
        answer = client.get(path)
        error_of(answer, 503, "ServiceUnavailableException")
        assert answer.headers["retry-after"] == "1"
    assert client.get("/health").status_code == 200


def test_a_store_that_hangs_ends_a_request_in_time() -> None:
    answered = threading.Event()

    def hang(_: Request) -> None:
        answered.wait(60)

    backend = FaultyBackend(MemoryBackend("hanging"), before=hang)
    client = client_of(objcat.Lake(FileIO(backend)), ServerSettings(cache_s=0, request_s=0.05))
    try:
        error_of(client.get("/v1/namespaces"), 503, "ServiceUnavailableException")
    finally:
        answered.set()


def test_too_many_requests_at_once_are_refused_and_health_still_answers(lake: objcat.Lake) -> None:
    client = client_of(lake, ServerSettings(requests_max=1))
    app: Any = client.app
    app.under_way = 1
    error_of(client.get("/v1/config"), 503, "SlowDownException")
    assert client.get("/health").status_code == 200
    app.under_way = 0
    assert client.get("/v1/config").status_code == 200


def test_a_log_that_cannot_be_read_leaves_the_mirror_readable(lake: objcat.Lake, caplog: pytest.LogCaptureFixture) -> None:
    key = next(key for key in lake.fileio.list_keys("tables/city.trips") if "/log/" in key)
    lake.fileio.put(key, b"{")
    assert client_of(lake).get("/v1/namespaces/city/tables/trips").status_code == 200
    assert "last mirrored slot" in caplog.text
