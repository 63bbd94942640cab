"""The probe and `objcat store-check`: what real servers keep, what lying stores are caught at, and that nothing is left behind."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from devkit.handle import ServerHandle
from devkit.servers import ServerName
from fileio import (
    BucketNotFound,
    Buffer,
    ByteRange,
    Capabilities,
    Create,
    FileIO,
    GetResult,
    InvalidConfig,
    NotFound,
    NotModified,
    ObjectMeta,
    Overwrite,
    PreconditionFailed,
    PutMode,
    PutOutcome,
    RetryPolicy,
    StoreUnfit,
    Unavailable,
    Update,
    Upload,
    Version,
    Written,
    open_store,
)
from fileio.check.probe import check_commit_store, probe
from fileio.check.report import ProbeReport, Verdict
from fileio.memory import MemoryBackend
from fileio.testing import FakeEnv
from tests.cli.commands import run, run_process

StartServer = Callable[[ServerName], ServerHandle]
SERVERS: list[tuple[ServerName, dict[str, Verdict]]] = [
    ("versitygw", {"copy: create": Verdict.UNSUPPORTED, "append": Verdict.UNSUPPORTED}),
    ("fake-gcs-server", {"copy: create": Verdict.IGNORED}),
    ("azurite", {}),
    ("moto", {"upload: update": Verdict.IGNORED, "copy: create": Verdict.UNSUPPORTED, "append": Verdict.UNSUPPORTED}),
]
"""Servers that are fit, and what is not kept there."""


class Liar(MemoryBackend):
    """A store that breaks one promise, as stores out there do."""

    lie = ""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.absent: set[str] = set()

    def get(self, key: str, byte_range: ByteRange | None, if_none_match: Version | None) -> GetResult | NotModified:
        try:
            if self.lie == "absence is cached" and key in self.absent:
                raise NotFound(f"{key} was not there a moment ago")
            result = super().get(key, byte_range, if_none_match)
        except NotFound:
            self.absent.add(key)
            raise
        if self.lie == "bodies are lost" and isinstance(result, GetResult):
            return replace(result, data=b"")
        return result

    @property
    def capabilities(self) -> Capabilities:
        return replace(super().capabilities, conditional_put=self.lie != "no conditions")

    def put(self, key: str, data: Buffer, mode: PutMode, metadata: Mapping[str, str]) -> PutOutcome:
        if self.lie == "create ignored" and isinstance(mode, Create):
            mode = Overwrite()
        if self.lie == "update ignored" and isinstance(mode, Update):
            mode = Overwrite()
        if self.lie == "update refused" and isinstance(mode, Update):
            return PreconditionFailed(None)
        if self.lie == "races" and isinstance(mode, Create) and "race" in key:
            mode = Overwrite()
        return super().put(key, data, mode, {} if self.lie == "no metadata" else metadata)

    def head(self, key: str) -> ObjectMeta:
        if self.lie == "heads fail":
            raise Unavailable("no answer")
        return super().head(key)

    def start_upload(self, key: str, mode: PutMode, metadata: Mapping[str, str]) -> Upload:
        return super().start_upload(key, Overwrite() if self.lie == "complete ignored" else mode, metadata)


def lying(lie: str) -> FileIO:
    backend = Liar("liar")
    backend.lie = lie
    return FileIO(backend, policy=RetryPolicy(attempts_max=2, backoff_ms_first=1))


def not_kept(report: ProbeReport) -> dict[str, Verdict]:
    return {row.check: row.verdict for row in report.rows if row.verdict is not Verdict.KEPT}


# ---- the probe


@pytest.mark.parametrize(("name", "expected"), SERVERS, ids=lambda value: value if isinstance(value, str) else "")
def test_servers_are_fit_and_their_deviations_are_found(name: ServerName, expected: dict[str, Verdict], servers: StartServer) -> None:
    bucket = servers(name).fresh_bucket()
    with open_store(bucket.url, bucket.options) as store:
        check_commit_store(store)
        report = probe(store)
        assert (report.fit, not_kept(report)) == (True, expected), report.why
        assert list(store.list_keys()) == []


@pytest.mark.tier("all")
def test_seaweedfs_is_fit_though_its_completions_may_race(servers: StartServer) -> None:
    bucket = servers("seaweedfs").fresh_bucket()
    with open_store(bucket.url, bucket.options) as store:
        check_commit_store(store)
        report = probe(store)
        # Its race of completions is lost in most runs, not in all.
        found = not_kept(report)
        assert found.pop("concurrent uploads", Verdict.IGNORED) is Verdict.IGNORED
        assert (report.fit, found) == (True, {"copy: create": Verdict.UNSUPPORTED, "append": Verdict.UNSUPPORTED})
        assert list(store.list_keys()) == []


def test_memory_and_local_keep_everything(tmp_path: Path) -> None:
    for url, expected in (("memory://probed", {"clock": Verdict.UNSUPPORTED}), (str(tmp_path / "lake"), {})):
        with open_store(url) as store:
            rows: list[str] = []
            report = probe(store, on_check=lambda row, rows=rows: rows.append(row.check))  # type: ignore[misc]
            assert (report.fit, not_kept(report)) == (True, expected)
            assert rows == [row.check for row in report.rows]
            assert list(store.list_keys()) == []
    assert [path.name for path in (tmp_path / "lake").iterdir()] == [".objcat"]


@pytest.mark.parametrize(
    ("lie", "check", "verdict"),
    [
        ("create ignored", "create", Verdict.IGNORED),
        ("update ignored", "stale update", Verdict.IGNORED),
        ("update refused", "update", Verdict.REFUSED),
        ("races", "concurrent creates", Verdict.IGNORED),
        ("no metadata", "metadata", Verdict.FAILED),
        ("no conditions", "create", Verdict.UNSUPPORTED),
        ("heads fail", "metadata", Verdict.FAILED),
        ("absence is cached", "read after write", Verdict.FAILED),
    ],
)
def test_a_store_that_breaks_a_promise_is_not_fit(lie: str, check: str, verdict: Verdict) -> None:
    store = lying(lie)
    report = probe(store)
    assert not report.fit
    assert not_kept(report)[check] is verdict
    assert f"{check} is {verdict}" in report.why
    assert list(store.list_keys()) == []


def test_a_broken_promise_that_commits_do_not_need_is_a_note() -> None:
    report = probe(lying("complete ignored"))
    assert report.fit
    assert {check for check, verdict in not_kept(report).items() if verdict is Verdict.IGNORED} == {
        "upload: create",
        "upload: update",
        "concurrent uploads",
    }
    assert "upload: create is ignored" in report.why


def test_a_clock_that_is_far_off_is_told() -> None:
    class Ahead(MemoryBackend):
        def put(self, key: str, data: Buffer, mode: PutMode, metadata: Mapping[str, str]) -> PutOutcome:
            outcome = super().put(key, data, mode, metadata)
            return replace(outcome, store_time_ms=600_000) if isinstance(outcome, Written) else outcome

    report = probe(FileIO(Ahead("ahead"), env=FakeEnv(now_ms=0)))
    assert report.fit
    [clock] = [row for row in report.rows if row.check == "clock"]
    assert clock.verdict is Verdict.FAILED
    assert clock.detail == "This machine is 600.0 s behind the store."


def test_a_store_that_cannot_be_asked_is_an_error() -> None:
    backend = MemoryBackend("gone")
    backend.drop()
    with pytest.raises(BucketNotFound):
        probe(FileIO(backend))


# ---- the quick check


@pytest.mark.parametrize(
    ("lie", "named"),
    [
        ("create ignored", "'create only when absent', "),
        ("update ignored", "'replace only when unchanged', "),
        ("complete ignored", "on the completion of an upload, "),
        ("no conditions", "has no conditional writes"),
        ("no metadata", "no metadata"),
        ("absence is cached", "no such object, as before"),
        ("bodies are lost", "0 bytes of version"),
    ],
)
def test_the_quick_check_refuses_a_liar_by_name(lie: str, named: str) -> None:
    store = lying(lie)
    with pytest.raises(StoreUnfit, match="Use another store") as caught:
        check_commit_store(store)
    assert named in str(caught.value)
    assert isinstance(caught.value, InvalidConfig)
    assert list(store.list_keys()) == []


def test_the_quick_check_is_quick_and_leaves_nothing() -> None:
    store = open_store("memory://quick")
    check_commit_store(store)
    assert store.metrics.snapshot().request_count <= 15
    assert list(store.list_keys()) == []


# ---- the command


def store_check(*arguments: str) -> tuple[int, str, str]:
    done = run("store-check", *arguments)
    return done.returncode, done.stdout, done.stderr


def test_the_command_prints_a_table_and_a_verdict(tmp_path: Path) -> None:
    done = run_process("store-check", str(tmp_path), "-o", "fsync=false")
    code, out, err = done.returncode, done.stdout, done.stderr
    assert code == 0, err
    assert "concurrent creates *" in out and "kept" in out
    assert (
        out.rstrip().splitlines()[-1] == f"file://{tmp_path} is fit for commits. It honours conditional writes, also by 16 clients at once."
    )


def test_the_command_prints_json(servers: StartServer) -> None:
    bucket = servers("moto").fresh_bucket()
    code, out, err = store_check(bucket.url, "--json", *(word for k, v in bucket.options.items() for word in ("--option", f"{k}={v}")))
    assert code == 0, err
    report = json.loads(out)
    assert (report["fit"], report["url"]) == (True, bucket.url)
    assert {"check": "upload: update", "verdict": "ignored"}.items() <= next(
        r for r in report["rows"] if r["check"] == "upload: update"
    ).items()


def test_an_unfit_store_ends_in_exit_code_1(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    import objcat.cli.store

    monkeypatch.setattr(objcat.cli.store, "open_store", lambda url, options, policy: lying("create ignored"))
    monkeypatch.setattr(sys, "argv", ["objcat", "store-check", "memory://liar"])
    with pytest.raises(SystemExit) as stopped:
        objcat.cli.main()
    assert stopped.value.code == 1
    assert "is not fit for commits: create is ignored" in capsys.readouterr().out


Arguments = Callable[[StartServer], list[str]]


def wrong_secret(servers: StartServer) -> list[str]:
    bucket = servers("versitygw").fresh_bucket()
    options = {**bucket.options, "secret_key": "hidden-value"}
    return [bucket.url, *(word for k, v in options.items() for word in ("-o", f"{k}={v}"))]


def missing_bucket(servers: StartServer) -> list[str]:
    server = servers("versitygw")
    return ["s3://there-is-no-such-bucket", *(word for k, v in server.options.items() for word in ("-o", f"{k}={v}"))]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (lambda _: ["s4://x"], "did you mean 's3'?"),
        (lambda _: ["s3://key:hidden-value@x"], "has credentials in the URL"),
        (lambda _: ["s3://key:hidden/value@x"], "has credentials in the URL"),
        (lambda _: ["s3:///x"], "names no bucket"),
        (lambda _: ["lake", "-o", "fsink=1"], "did you mean 'fsync'?"),
        (lambda _: ["lake", "-o", "hidden-value"], "the form KEY=VALUE"),
        (lambda _: [__file__], "is a file"),
        (wrong_secret, "'secret_key'"),
        (missing_bucket, "there-is-no-such-bucket"),
    ],
)
def test_wrong_input_is_one_sentence_and_exit_code_2(arguments: Arguments, said: str, servers: StartServer) -> None:
    if arguments is wrong_secret:  # nothing of what libraries print by themselves shows it either
        done = run_process("store-check", *arguments(servers))
        code, out, err = done.returncode, done.stdout, done.stderr
    else:
        code, out, err = store_check(*arguments(servers))
    assert (code, out) == (2, "")
    assert len(err.strip().splitlines()) == 1, err
    assert err.startswith("objcat: ") and said in err
    assert "hidden" not in err and "Traceback" not in err
