"""`./dev COMMAND`, inside the environment."""

from __future__ import annotations

import difflib
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from devkit import checks, suites, toolchain
from devkit.install import InstallError
from devkit.site import ADDRESS, docs
from devkit.toolchain import ToolchainError


@dataclass(frozen=True, slots=True)
class Command:
    """One command of `./dev`.

    Args:
        usage: Its arguments.
        help: One line of help.
        run: Runs it with its arguments and returns the exit status.
    """

    usage: str
    help: str
    run: Callable[[Sequence[str]], int]


def _run(arguments: Sequence[str]) -> int:
    if not arguments:
        print("dev run: Pass the command to run, for example ./dev run python.", file=sys.stderr)
        return 2
    environment = toolchain.run_environment()
    try:
        os.execvpe(arguments[0], list(arguments), environment)
    except OSError as error:
        print(f"dev run: {arguments[0]} cannot be run ({error.strerror}).", file=sys.stderr)
        return 127


def _module(name: str) -> Callable[[Sequence[str]], int]:
    return lambda arguments: _run([sys.executable, "-m", name, *arguments])


def _servers(arguments: Sequence[str]) -> int:
    from devkit.servers_command import serve

    return serve(arguments)


def _lock(arguments: Sequence[str]) -> int:
    from devkit.locks import write_locks

    return write_locks(arguments)


COMMANDS: Mapping[str, Command] = {
    "demo": Command(
        "[--store s3|gcs|azure] [--ingest]",
        "see objcat work: four writers upsert flights into one table, and one is killed; or a database is followed",
        _module("devkit.demo"),
    ),
    "test": Command(
        "[SUITE...] [--integration] [--all] [PYTEST ARGUMENTS]",
        "run the tests for every change, for a merge, or all; or some of tests/",
        suites.test,
    ),
    "install": Command("[SUITE...] [--integration]", "install what ./dev test needs; ./dev test does so too", suites.install),
    "check": Command("", "formatting, lint, types and the layers of imports", lambda _: checks.check()),
    "format": Command("", "format the sources and apply safe fixes", lambda _: checks.format_sources()),
    "servers": Command("[NAME...]", "start all test servers, or some, and show how to reach them, until Ctrl-C", _servers),
    "bench": Command("SUITE [OPTIONS]", "run a benchmark; smoke runs all of them on a few rows", _module("benchmarks")),
    "docs": Command(
        "[build [FOLDER] | reference | vectors]",
        f"serve the pages as a site on {ADDRESS}; build it; or write the pages, or the data of spec/, that come from code",
        docs,
    ),
    "run": Command("COMMAND...", "run a command inside the project's environment", _run),
    "lock": Command("[NAME...]", "resolve requirements/*.in again, or some of them, and write requirements/*.lock", _lock),
}


def usage() -> str:
    """The text that `./dev` alone prints."""
    left = {name: f"./dev {name} {command.usage}".rstrip() for name, command in COMMANDS.items()}
    width = max(map(len, left.values())) + 2
    lines = [f"  {left[name]:<{width}}{command.help}" for name, command in COMMANDS.items()]
    return "\n".join(["The developer's commands of objcat:", "", *lines])


def main(arguments: Sequence[str]) -> int:
    """Run one command and return its exit status."""
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(usage())
        return 0
    name, *rest = arguments
    if name not in COMMANDS:
        near = difflib.get_close_matches(name, COMMANDS, n=1)
        hint = f"Did you mean {near[0]!r}?" if near else "Run ./dev to see all commands."
        print(f"dev: There is no command {name!r}. {hint}", file=sys.stderr)
        return 2
    try:
        return COMMANDS[name].run(rest)
    except (ToolchainError, InstallError) as error:
        print(f"dev {name}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
