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
    """usage: of its arguments. help: one line. run: from the arguments to the exit status."""

    usage: str
    help: str
    run: Callable[[Sequence[str]], int]


def _run(arguments: Sequence[str]) -> int:
    if not arguments:
        print("dev run: name the command to run, for example ./dev run python", file=sys.stderr)
        return 2
    environment = toolchain.run_environment()
    try:
        os.execvpe(arguments[0], list(arguments), environment)
    except OSError as error:
        print(f"dev run: {arguments[0]} cannot be run: {error.strerror}", file=sys.stderr)
        return 127


def _module(name: str) -> Callable[[Sequence[str]], int]:
    return lambda arguments: _run([sys.executable, "-m", name, *arguments])


def _servers(arguments: Sequence[str]) -> int:
    from devkit.servers_command import serve

    return serve(arguments)


def _lock(_arguments: Sequence[str]) -> int:
    from devkit.locks import write_locks

    return write_locks()


COMMANDS: Mapping[str, Command] = {
    "demo": Command(
        "[--store s3|gcs|azure]", "see it work: flights into one table by four writers, one of them killed", _module("devkit.demo")
    ),
    "test": Command(
        "[SUITE...] [--integration] [--all] [PYTEST ARGUMENTS]",
        "run the tests for every change, for a merge, or all; or some of tests/",
        suites.test,
    ),
    "install": Command("[SUITE...] [--integration]", "install what ./dev test needs, which installs it as well", suites.install),
    "check": Command("", "formatting, lint, types and the layers of imports", lambda _: checks.check()),
    "format": Command("", "format the sources and mend what can be mended safely", lambda _: checks.format_sources()),
    "servers": Command("[NAME...]", "start the test servers (all, or those named) and show how to reach them, until Ctrl-C", _servers),
    "bench": Command("SUITE [OPTIONS]", "run a benchmark, or all of them on a few rows: smoke", _module("benchmarks")),
    "docs": Command(
        "[build [FOLDER] | reference]", f"serve the pages as a site on {ADDRESS}; build it; or write the pages that come from code", docs
    ),
    "run": Command("COMMAND...", "run a command inside the project's environment", _run),
    "lock": Command("", "write requirements/*.lock anew from requirements/*.in", _lock),
}


def usage() -> str:
    """What `./dev` alone prints."""
    left = {name: f"./dev {name} {command.usage}".rstrip() for name, command in COMMANDS.items()}
    width = max(map(len, left.values())) + 2
    lines = [f"  {left[name]:<{width}}{command.help}" for name, command in COMMANDS.items()]
    return "\n".join(["The developer's commands of objcat:", "", *lines])


def main(arguments: Sequence[str]) -> int:
    """Run one command; its exit status."""
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(usage())
        return 0
    name, *rest = arguments
    if name not in COMMANDS:
        near = difflib.get_close_matches(name, COMMANDS, n=1)
        print(f"dev: there is no command {name!r}: {f'did you mean {near[0]!r}?' if near else 'run ./dev to see them'}", file=sys.stderr)
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
