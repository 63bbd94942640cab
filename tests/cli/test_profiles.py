"""Connection profiles: a lake by a name, its options with it, and no secret shown."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

import objcat
from devkit.handle import ServerHandle
from tests.cli.commands import run

SECRET = "hidden-value"


@pytest.fixture
def profiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of the user's profiles, with one of a lake that has a table."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("OBJCAT_PROFILE", raising=False)
    table = objcat.connect(tmp_path / "lake").create_table("city.trips", pa.schema([("id", pa.int64())]), key=["id"])
    table.insert([{"id": 1}, {"id": 2}])
    path = tmp_path / "config" / "objcat" / "profiles.toml"
    path.parent.mkdir(parents=True)
    path.write_text(
        f'[here]\nurl = "{tmp_path}/lake/"\n[here.options]\nfsync = false\n\n[cloud]\nurl = "s3://bucket/lake"\n'
        f'[cloud.options]\nregion = "r"\nsecret_key = "{SECRET}"\n'
    )
    path.chmod(0o600)
    return path


def test_names_stand_for_urls(profiles: Path, tmp_path: Path) -> None:
    for arguments in (["ls"], ["ls", "city"], ["ls", f"{tmp_path}/lake"]):
        done = run("--profile", "here", *arguments, "--json")
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["name"] == "city.trips"
    for arguments in (["log", "city.trips"], ["stats", "city.trips"], ["doctor"], ["doctor", "city.trips"], ["schema", "city.trips"]):
        assert run("--profile", "here", *arguments).returncode == 0, arguments
    assert json.loads(run("--profile", "here", "query", "SELECT count(*) AS n FROM city.trips", "--json").stdout) == {"n": 2}
    assert run("ls").returncode == 2, "the profile of an earlier call does not stay"


def test_the_environment_may_name_one(profiles: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OBJCAT_PROFILE", "here")
    assert run("stats", "city.trips").returncode == 0


def test_options_of_a_profile_reach_the_store(profiles: Path, servers: Callable[[str], ServerHandle]) -> None:
    store = servers("versitygw").fresh_bucket()
    objcat.connect(f"{store.url}/lake", dict(store.options)).create_table("t", pa.schema([("id", pa.int64())]), key=["id"])
    lines = [f'[s3]\nurl = "{store.url}/lake"\n[s3.options]', *(f'{name} = "{value}"' for name, value in store.options.items())]
    profiles.write_text("\n".join(lines))
    assert json.loads(run("--profile", "s3", "ls", "--json").stdout)["name"] == "t"
    wrong = run("--profile", "s3", "ls", "-o", f"secret_key={SECRET}")
    assert wrong.returncode == 2 and SECRET not in wrong.stderr, "what is given with the call goes before"


def test_they_are_listed_without_values(profiles: Path) -> None:
    shown, told = run("profiles", columns=200).stdout, run("profiles", "--json").stdout
    assert "cloud" in shown and "secret_key" in shown and SECRET not in shown + told
    assert [json.loads(line)["options"] for line in told.splitlines()] == [["fsync"], ["region", "secret_key"]]


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (f'[here\nurl = "{SECRET}"', "are not valid TOML (at line 1"),
        (f'[here]\nuri = "{SECRET}"', "has no url"),
        (f'here = "{SECRET}"', "has no url"),
        (f'[here]\nurl = "x"\nsecret_key = "{SECRET}"', "neither url nor options"),
        (f'[here]\nurl = "x"\noptions = "{SECRET}"', "are not a table"),
        (f'[here]\nurl = "x"\n[here.options]\nsecret_key = ["{SECRET}"]', "neither text, a number nor a bool"),
        ('[her]\nurl = "x"', "did you mean 'her'?"),
        ("", "Write one into it, like [prod]"),
    ],
)
def test_a_file_that_is_wrong_is_one_sentence_without_its_values(profiles: Path, content: str, part: str) -> None:
    profiles.write_text(content)
    done = run("--profile", "here", "ls")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr
    assert part in done.stderr and SECRET not in done.stderr


def test_without_a_file_it_says_where_to_write_one(profiles: Path) -> None:
    profiles.unlink()
    assert str(profiles) in run("--profile", "here", "ls").stderr
    assert run("profiles").stdout.startswith("There are no profiles in ")


@pytest.mark.skipif(os.name != "posix", reason="rights of POSIX")
@pytest.mark.parametrize(("mode", "warned"), [(0o600, False), (0o400, False), (0o640, True), (0o604, True), (0o620, True), (0o666, True)])
def test_a_file_with_secrets_that_others_may_reach_is_warned_of_once(profiles: Path, mode: int, warned: bool) -> None:
    profiles.chmod(mode)
    for arguments in (["--profile", "here", "profiles"], ["profiles"]):
        done = run(*arguments)
        assert done.returncode == 0 and "cloud" in done.stdout
        assert (done.stderr.count("\n"), f"chmod 600 {profiles}" in done.stderr) == (1, True) if warned else not done.stderr
        assert SECRET not in done.stderr
        warned = False


@pytest.mark.skipif(os.name != "posix", reason="rights of POSIX")
def test_the_warning_is_json_where_json_is_wanted(profiles: Path) -> None:
    profiles.chmod(0o644)
    done = run("--profile", "here", "ls", "--json")
    told = json.loads(done.stderr)
    assert set(told) == {"warning", "message"} and f"chmod 600 {profiles}" in told["message"] and json.loads(done.stdout)


@pytest.mark.skipif(os.name != "posix", reason="rights of POSIX")
def test_a_file_without_secrets_may_be_read_but_not_written_by_others(profiles: Path) -> None:
    profiles.write_text('[here]\nurl = "s3://bucket/lake"\n[here.options]\nregion = "r"\n')
    profiles.chmod(0o644)
    assert run("profiles").stderr == ""
    profiles.chmod(0o646)
    assert "others may write" in run("profiles").stderr


@pytest.mark.skipif(os.name != "posix", reason="rights of POSIX")
def test_a_scheme_that_is_not_there_counts_as_one_with_secrets(profiles: Path) -> None:
    profiles.write_text('[here]\nurl = "nowhere://bucket/lake"\n[here.options]\nanything = "r"\n')
    profiles.chmod(0o644)
    assert "chmod 600" in run("profiles").stderr
