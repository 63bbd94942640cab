"""The page "From a database to a lake in five minutes" is done as a reader does it: every command on it runs, on both databases."""

from __future__ import annotations

import contextlib
import doctest
import io
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from devkit.databases import DatabaseUser, install_mariadb, install_postgres
from devkit.pages import FENCE
from devkit.paths import ROOT
from devkit.servers import free_ports
from fileio.env import default_env
from tests.conftest import check_needed

PAGE = ROOT / "docs" / "how-to" / "database-to-lake.md"
MARIADB = "## The same with MariaDB"
PATIENCE_S = 60.0


class PageReader:
    """Someone who does what the page says, in an empty directory.

    Args:
        folder: the directory.
        user: who runs the database.
        programs: the folder of the database's programs.
        ports: numbers of the page, with those that are free here.
    """

    def __init__(self, folder: Path, user: DatabaseUser, programs: Path, ports: dict[str, str]) -> None:
        self._folder = folder
        self._user = user
        self._ports = ports
        self._python: dict[str, Any] = {"__name__": "page"}
        self._started: list[subprocess.Popen[str]] = []
        tools = folder / "tools"
        tools.mkdir()
        script = tools / "objcat"
        script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m objcat.cli "$@"\n')
        script.chmod(0o755)
        path = os.pathsep.join([str(tools), str(programs), os.environ["PATH"]])
        self._environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)}

    def do(self, kind: str, text: str, output: str | None) -> str:
        """Do one block. Returns what it printed."""
        for number, free in self._ports.items():
            text = text.replace(number, free)
        match kind:
            case "toml":
                (self._folder / "shop.toml").write_text(text)
                return ""
            case "python":
                return self._run_python(text, output)
            case "sh" if text.startswith("pip install"):
                return ""  # It is installed.
            case "sh" if text.startswith("objcat ingest run"):
                self._started.append(self._start(text))
                return ""
            case "sh" if "objcat ingest" in text:
                return self._run(text)
            case "sh" if "\nrm " in text:
                stop, _, remove = text.partition("\n")
                return self._run_as_user(stop) + self._run(remove)
            case "sh":
                return self._run_as_user(text)
        raise AssertionError(f"the page has a block of {kind}")

    def interrupt(self) -> int:
        """Press Ctrl-C where the ingest runs. Returns its exit status."""
        process = self._started.pop()
        os.killpg(process.pid, signal.SIGINT)
        process.communicate(timeout=PATIENCE_S)
        return process.returncode

    def close(self) -> None:
        """End what still runs."""
        for process in self._started:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()

    def _start(self, text: str, user: DatabaseUser | None = None) -> subprocess.Popen[str]:
        other = user is not None and os.geteuid() == 0
        return subprocess.Popen(
            ["bash", "-euc", text if "\n" in text.strip() or "export" in text else f"exec {text}"],
            cwd=self._folder,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            user=user.uid if user and other else None,
            group=user.gid if user and other else None,
            extra_groups=[] if other else None,
        )

    def _run(self, text: str) -> str:
        for name, value in re.findall(r"^export (\w+)=(\w+)$", text, re.MULTILINE):
            self._environment[name] = value
        process = self._start(text)
        said, _ = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0, f"{text}\n{said}"
        return said

    def _run_as_user(self, text: str) -> str:
        process = self._start(text, self._user)
        if text.rstrip().endswith("&"):
            process.wait(PATIENCE_S)
            self._started.insert(0, process)
            return ""
        said, _ = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0, f"{text}\n{said}"
        return said

    def _run_python(self, text: str, output: str | None) -> str:
        """Run a block until it prints what the page shows: the ingest that runs takes a moment."""
        end_s = default_env().monotonic_s() + PATIENCE_S
        while True:
            printed = io.StringIO()
            try:
                with contextlib.redirect_stdout(printed), contextlib.chdir(self._folder):
                    exec(compile(text, str(PAGE), "exec", dont_inherit=True), self._python)
            except Exception as error:  # noqa: BLE001 - a column may not have joined yet
                printed.write(repr(error))
            if output is None or doctest.OutputChecker().check_output(output, printed.getvalue(), doctest.ELLIPSIS):
                return printed.getvalue()
            assert self._started and default_env().monotonic_s() < end_s, f"{text}\nprinted:\n{printed.getvalue()}"
            default_env().sleep(0.1)


@pytest.fixture
def folder() -> Iterator[Path]:
    """A directory that the user of a database may write to, with a path that is short enough for sockets."""
    made = Path(tempfile.mkdtemp(prefix="objcat-page-"))
    made.chmod(0o777)
    yield made
    shutil.rmtree(made, ignore_errors=True)


def blocks(text: str) -> list[tuple[str, str, str | None]]:
    """The blocks of a text in order: language, content, and what it prints."""
    fences = list(FENCE.finditer(text))
    found = []
    for fence, following in zip(fences, [*fences[1:], None], strict=True):
        if fence[1] != "text":
            answers = following is not None and following[1] == "text" and not text[fence.end() : following.start()].strip()
            found.append((fence[1], fence[2], following[2] if answers and following else None))
    return found


def do_all(reader: PageReader, todo: list[tuple[str, str, str | None]]) -> None:
    """Do blocks in order. Before everything is removed, the ingest is interrupted."""
    for kind, text, output in todo:
        if "shop-db -m fast stop" in text:
            assert reader.interrupt() == 130
        said = reader.do(kind, text, output)
        assert "ingest status" not in text or "consistent: yes" in said


def test_on_postgres(folder: Path) -> None:
    check_needed("postgres")
    reader = PageReader(
        folder, DatabaseUser.find("postgres"), install_postgres(), {"5433": str(free_ports(1)[0]), "-k /tmp": f"-k {folder}"}
    )
    try:
        todo = blocks(PAGE.read_text().partition(MARIADB)[0])
        do_all(reader, todo)
        assert len(todo) == 11
        assert not (folder / "shop-db").exists() and not (folder / "lake").exists()
    finally:
        reader.close()
        end_server(folder / "shop-db" / "postmaster.pid")


def test_on_mariadb(folder: Path) -> None:
    check_needed("mariadb")
    install_mariadb()
    reader = PageReader(folder, DatabaseUser.find("mysql"), Path("/usr/sbin"), {"3307": str(free_ports(1)[0])})
    common, _, section = PAGE.read_text().partition(MARIADB)
    try:
        _, start, shop, (_, lines, _), remove = blocks(section)
        reader.do(*start)
        wait_for_socket(folder / "shop-maria" / "socket")
        reader.do(*shop)
        todo = []
        for kind, text, output in blocks(common):
            if kind == "toml":
                todo.append((kind, with_lines(text, lines), output))
            elif text.startswith("psql") and "-d shop" in text:
                todo.append((kind, re.sub("^psql .* -f - ", 'mariadb --socket="$PWD/shop-maria/socket" -u root shop ', text), output))
            elif not text.startswith(("initdb", "psql", "pg_ctl")):
                todo.append((kind, text, output))
        do_all(reader, todo)
        assert reader.interrupt() == 130
        reader.do(*remove)
        assert not (folder / "shop-maria").exists() and not (folder / "lake").exists()
    finally:
        reader.close()


def with_lines(text: str, lines: str) -> str:
    """A configuration with other values of the settings that `lines` has."""
    others = {line.split()[0]: line for line in lines.splitlines()}
    made = "".join(f"{others.get(line.split(' ')[0], line)}\n" for line in text.splitlines())
    assert made.count("\n") == 11 and "postgres" not in made
    return made


def wait_for_socket(path: Path) -> None:
    """Wait as a reader does who types the next command."""
    import socket

    end_s = default_env().monotonic_s() + PATIENCE_S
    while default_env().monotonic_s() < end_s:
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as opened:
            opened.connect(str(path))
            if opened.recv(5):
                return
        default_env().sleep(0.1)
    raise AssertionError(f"{path} does not answer: {(path.parents[1] / 'shop-maria.log').read_text()[-2000:]}")


def end_server(pid_file: Path) -> None:
    """End a server of PostgreSQL that a test that failed left behind."""
    with contextlib.suppress(OSError, ValueError):
        os.kill(int(pid_file.read_text().split()[0]), signal.SIGQUIT)
