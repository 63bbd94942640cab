"""No secret is ever shown: not in a message, a traceback, a `repr` or a log record of the SDKs at DEBUG, whatever a server answers."""

from __future__ import annotations

import base64
import logging
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from fileio import Create, FileIO, FileIOError, OutcomeUnknown, RetryPolicy, describe_store

HUSH = "hushHUSH0123456789abcdefHUSHhush"
ENCODED = base64.b64encode(HUSH.encode()).decode()
EVERY_FORM = (HUSH, ENCODED, base64.b64encode(ENCODED.encode()).decode())
NOWHERE = "http://127.0.0.1:9"
PROXY = f"http://user:{HUSH}@127.0.0.1:9"

STORES: Mapping[str, Callable[[str], tuple[str, Mapping[str, str]]]] = {
    "s3": lambda at: ("s3", {"endpoint": at, "region": "r", "access_key": "me", "secret_key": HUSH, "session_token": HUSH}),
    "s3-customer-key": lambda at: (
        "s3",
        {"endpoint": at, "region": "r", "access_key": "me", "secret_key": HUSH, "sse_customer_key": ENCODED},
    ),
    "s3-proxy": lambda at: ("s3", {"endpoint": NOWHERE, "region": "r", "access_key": "me", "secret_key": "x", "proxy": PROXY}),
    "s3-broken-proxy": lambda at: ("s3", {"endpoint": at, "region": "r", "anonymous": "yes", "proxy": PROXY.replace("http", "ht!tp")}),
    "gs-token": lambda at: ("gs", {"endpoint": at, "access_token": HUSH}),
    "gs-proxy": lambda at: ("gs", {"endpoint": NOWHERE, "anonymous": "yes", "proxy": PROXY}),
    "gs-endpoint": lambda at: ("gs", {"endpoint": PROXY, "anonymous": "yes"}),
    "gs-no-json": lambda at: ("gs", {"endpoint": at, "credentials_json": f'{{"type": "service_account", "private_key": "{HUSH}"'}),
    "gs-half-a-key": lambda at: ("gs", {"endpoint": at, "credentials_json": f'{{"type": "service_account", "private_key": "{HUSH}"}}'}),
    "gs-user": lambda at: (
        "gs",
        {
            "endpoint": at,
            "credentials_json": f'{{"type": "authorized_user", "client_id": "me", "refresh_token": "{HUSH}",'
            f' "client_secret": "{HUSH}", "token_uri": "{at}/token"}}',
        },
    ),
    "az-key": lambda at: ("az", {"endpoint": f"{at}/account", "account_key": ENCODED}),
    "az-no-base64": lambda at: ("az", {"endpoint": f"{at}/account", "account_key": f"no base64 {HUSH}"}),
    "az-signature": lambda at: ("az", {"endpoint": f"{at}/account", "sas_token": f"sv=2024-01-01&sig={HUSH}"}),
    "az-string": lambda at: ("az", {"connection_string": f"BlobEndpoint={at}/account;SharedAccessSignature=sv=1&sig={HUSH}"}),
    "az-bad-string": lambda at: ("az", {"connection_string": f"AccountKey={ENCODED}"}),
    "az-proxy": lambda at: ("az", {"endpoint": f"{NOWHERE}/account", "account_key": ENCODED, "proxy": PROXY}),
}
SEPARATED = {"slash": "/", "at": "@", "hash": "#", "question": "?", "colon": ":", "digits": "1/", "backslash": "\\", "percent": "%2"}
"""What people forget to escape in a password."""


def _behind_proxy(scheme: str, separator: str) -> tuple[str, Mapping[str, str]]:
    proxy = f"http://user:{HUSH}{separator}{HUSH}@127.0.0.1:9"
    return {
        "s3": ("s3", {"endpoint": NOWHERE, "region": "r", "access_key": "me", "secret_key": "x", "proxy": proxy}),
        "gs": ("gs", {"endpoint": NOWHERE, "anonymous": "yes", "proxy": proxy}),
        "az": ("az", {"endpoint": f"{NOWHERE}/account", "account_key": ENCODED, "proxy": proxy}),
    }[scheme]


class Answer:
    """What the server says to everything: a status (0: it hangs up), and a body that repeats secrets."""

    status = 500
    headers: Mapping[str, str] = {}
    body = b""


@pytest.fixture(scope="module")
def chatty() -> Iterator[tuple[str, Answer]]:
    """A server that repeats in its answers what it must not."""
    answer = Answer()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def respond(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            status, headers, body = answer.status, answer.headers, answer.body
            if status == 0:
                self.close_connection = True
                return
            if self.path.startswith("/upload") and "uploadType=resumable" in self.path and "upload_id" not in self.path:
                status, headers, body = 200, {"Location": f"{url}/upload/x?uploadType=resumable&upload_id={HUSH}"}, b""
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = respond

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield url, answer
    server.shutdown()
    server.server_close()
    thread.join()


def _upload(store: FileIO) -> object:
    upload = store.start_upload("k")
    upload.put_part(1, bytes(262144))
    upload.put_part(2, b"x")
    return upload.complete()


CALLS: Mapping[str, Callable[[FileIO], object]] = {
    "get": lambda store: store.get("k"),
    "head": lambda store: store.head("k"),
    "put": lambda store: store.put("k", b"x", Create()),
    "list": lambda store: list(store.list()),
    "delete": lambda store: store.delete(["a", "b"]),
    "copy": lambda store: store.copy("a", "b"),
    "upload": _upload,
}
ANSWERS: Mapping[str, tuple[int, Mapping[str, str], bytes]] = {
    "hang up": (0, {}, b""),
    "server error": (500, {}, f'{{"error": {{"message": "token={HUSH}"}}}}'.encode()),
    "no": (403, {}, f"<Error><Code>SignatureDoesNotMatch</Code><Message>secret={HUSH} sig={ENCODED}</Message></Error>".encode()),
    "absent": (404, {}, f'{{"error": {{"message": "password: {HUSH}"}}}}'.encode()),
    "elsewhere": (307, {"Location": f"{NOWHERE}/x?sig={HUSH}&upload_id={HUSH}"}, b""),
}


@pytest.mark.parametrize("name", list(STORES))
def test_nothing_shows_a_secret(name: str, chatty: tuple[str, Answer], caplog: pytest.LogCaptureFixture) -> None:
    url, answer = chatty
    scheme, options = STORES[name](url)
    # Signing in is tried again for seconds by the SDK itself, so one call must do where that fails.
    acts = {"get": CALLS["get"]} if name == "gs-user" else CALLS
    shown: list[str] = []
    calls = 0
    with caplog.at_level(logging.DEBUG):
        try:
            description = describe_store(f"{scheme}://bucket", options)
            shown.append(repr(description) + str(description) + repr(description.options.get("proxy")))
            with description.open(policy=RetryPolicy(attempts_max=1)) as store:
                shown.append(repr(store) + repr(store.describe()))
                for (answer.status, answer.headers, answer.body), act in ((a, c) for a in ANSWERS.values() for c in acts.values()):
                    calls += 1
                    try:
                        result = act(store)
                    except FileIOError as error:
                        shown.append("".join(traceback.format_exception(error)))
                    else:
                        shown.append(repr(result))
                        if isinstance(result, OutcomeUnknown):
                            shown.append("".join(traceback.format_exception(result.cause)))
        except FileIOError as error:
            shown.append("".join(traceback.format_exception(error)))
    formatter = logging.Formatter()
    shown += [formatter.format(record) for record in caplog.records]
    assert [text for text in shown if any(form in text for form in EVERY_FORM)] == []
    assert calls == len(ANSWERS) * len(acts) or name in ("gs-endpoint", "az-bad-string")


@pytest.mark.parametrize("separator", SEPARATED)
@pytest.mark.parametrize("scheme", ["s3", "gs", "az"])
@pytest.mark.parametrize("given", ["option", "environment", "endpoint"])
def test_a_password_that_nobody_escaped_is_not_shown(
    scheme: str, separator: str, given: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even a part of it, which libraries take for a host or a port."""
    _, options = _behind_proxy(scheme, SEPARATED[separator])
    proxy = options["proxy"]
    if given != "option":
        options = {name: value for name, value in options.items() if name != "proxy"}
    if given == "environment":
        for name in ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"):
            monkeypatch.setenv(name, proxy)
        options = {**options, "endpoint": options["endpoint"].replace("127.0.0.1", "localhost.invalid")}
    if given == "endpoint":
        options = {**options, "endpoint": proxy}
    shown: list[str] = []
    with caplog.at_level(logging.DEBUG), pytest.raises(FileIOError) as caught:
        _ask(f"{scheme}://bucket", options, shown)
    shown += ["".join(traceback.format_exception(caught.value)), repr(caught.value)]
    shown += [logging.Formatter().format(record) for record in caplog.records]
    assert [text for text in shown if HUSH[:8] in text] == []
    if "/" in SEPARATED[separator]:
        assert "%2F" in str(caught.value) or given == "endpoint"


def _ask(url: str, options: Mapping[str, str], shown: list[str]) -> None:
    description = describe_store(url, options)
    shown.append(repr(description))
    with description.open(policy=RetryPolicy(attempts_max=1)) as store:
        shown.append(repr(store))
        store.get("k")
