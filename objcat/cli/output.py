"""Output of commands: lines, tables and JSON. Text from a table or a store never controls the terminal."""

from __future__ import annotations

import base64
import json
import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, TypeAlias

from rich import box
from rich.console import Console
from rich.status import Status
from rich.table import Table as Sheet
from rich.text import Text

from objcat.common.progress import Progress, report_progress
from objcat.common.terminal import visible


def say(text: str = "", *, error: bool = False) -> None:
    """Print one line for people, or of JSON, to stdout or stderr. Its text stays in this line and controls no terminal."""
    print(visible(text), file=sys.stderr if error else sys.stdout)


def wants_json() -> bool:
    """Whether this call of the command line asks for JSON."""
    return "--json" in sys.argv[1:]


def say_error(kind: str, said: str, code: int) -> None:
    """Print an error to stderr: a message, or with --json an object of `error` (its class), `message` and `exit_code`."""
    if wants_json():
        say(json_text({"error": kind, "message": said, "exit_code": code}), error=True)
    else:
        say(f"objcat: {said}", error=True)


def say_warning(kind: str, said: str) -> None:
    """Print a warning to stderr: a message, or with --json an object of `warning` and `message`."""
    say(json_text({"warning": kind, "message": said}) if wants_json() else f"objcat: {said}", error=True)


def words(text: str, style: str = "") -> Text:
    """Text for a cell, a title or a status, without markup, and with control characters made visible."""
    return Text(visible(text), style=style)


def sheet(title: str | None = None, *, headed: bool = True) -> Sheet:
    """An empty table in the style of all commands."""
    return Sheet(title=None if title is None else words(title, "table.title"), title_justify="left", box=box.SIMPLE, show_header=headed)


def draw(shown: Sheet | Text) -> None:
    """Print a table, or a line with a style, to stdout. A line is never broken."""
    Console().print(shown, soft_wrap=isinstance(shown, Text))


ChangingLine: TypeAlias = Status
"""A line of the terminal that may change."""


def changing_line(text: str) -> ChangingLine | None:
    """A line of the terminal that may change, before it is started. None where standard error is no terminal."""
    console = Console(stderr=True)
    return console.status(words(text), spinner="dots") if console.is_terminal else None


def width() -> int:
    """Characters in a line of the terminal."""
    return Console().width


@contextmanager
def progress(what: str, *, shown: bool = True) -> Iterator[None]:
    """Show the progress of the block, on a terminal only."""
    console = Console(stderr=True)
    if not shown or not console.is_terminal:
        yield
        return
    with console.status(words(what), spinner="dots") as status:

        def tell(at: Progress) -> None:
            of = "" if at.total is None else f" of {at.total:,}"
            status.update(words(f"{what}: {at.done:,}{of} {at.unit}"))

        with report_progress(tell):
            yield


@contextmanager
def steps(what: str, *, shown: bool = True) -> Iterator[Steps]:
    """Show the progress of work in several steps, and hide it while lines are printed."""
    with Console(stderr=True).status(words(what), spinner="dots") if shown else nullcontext() as status:
        yield Steps(status)


@dataclass(frozen=True, slots=True)
class Steps:
    """Shows the progress of steps. `status`: None: nothing is shown."""

    status: Status | None

    def tell(self, what: str) -> None:
        """Show the current step."""
        if self.status is not None:
            self.status.update(words(what))

    @contextmanager
    def away(self) -> Iterator[None]:
        """Hide the progress meanwhile."""
        if self.status is None:
            yield
            return
        self.status.stop()
        yield
        self.status.start()


def json_text(value: Any, *, indent: int | None = None) -> str:
    """JSON in ASCII without control characters, one line unless it is indented.

    Times are ISO text, zoned ones in UTC (`Z`). Decimals and numbers that JSON lacks are text; bytes are base64.
    """
    try:
        text = json.dumps(value, default=_plain, allow_nan=False, indent=indent)
    except ValueError:
        text = json.dumps(_finite(value), default=_plain, indent=indent)
    return text.replace("\x7f", "\\u007f")


def say_json(value: Any, *, indent: int | None = None) -> None:
    """Print one JSON value to stdout, one line unless it is indented."""
    print(json_text(value, indent=indent))


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(one) for one in value]
    return value


def _plain(value: Any) -> Any:
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    if isinstance(value, (datetime, date, time)):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    if isinstance(value, Decimal):
        return str(value)
    return str(value)


def time_text(when_ms: int) -> str:
    """A time for people: ISO text in UTC, to the second."""
    return datetime.fromtimestamp(when_ms / 1000, UTC).isoformat(sep=" ", timespec="seconds")[:-6]


def instant_text(when_ms: int) -> str:
    """A time for programs: ISO text with its zone, `2026-01-31T12:00:00.000Z`."""
    return datetime.fromtimestamp(when_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def cell(value: Any) -> Text:
    """A value in a column for people: numbers with separators, unknown ones as a dash."""
    if value is None:
        return words("-")
    if isinstance(value, dict):
        return words(", ".join(f"{key}={text}" for key, text in value.items()))
    return words(f"{value:,}" if isinstance(value, int) else str(value))
