"""What the commands share: exit codes, options, opening what a URL names, and texts for people."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any

import typer
from rich.text import Text

from fileio import InvalidConfig
from objcat.handle import Table
from objcat.lake import find_table

EXIT_NO = 1
EXIT_WRONG = 2

Option = Annotated[list[str] | None, typer.Option("--option", "-o", metavar="KEY=VALUE", help="An option of the store; may be repeated.")]
TableUrl = Annotated[
    str,
    typer.Argument(
        help="The URL of a lake, a slash, and a table's name, e.g. s3://bucket/lake/city.trips; or where a table is that has no lake.",
        metavar="TABLE",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def parse_option_arguments(arguments: list[str]) -> dict[str, str]:
    """Options of a store from arguments of the form `key=value`. Raises InvalidConfig without repeating values: they may be secret."""
    options: dict[str, str] = {}
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if not key or not equals:
            raise InvalidConfig("an option needs the form KEY=VALUE, for example --option region=eu-central-1")
        options[key] = value
    return options


def open_table(url: str, option: list[str] | None) -> Table:
    """The table that a URL names: in a lake, or by itself. Raises InvalidConfig, InvalidInput, TableNotFound."""
    return find_table(url, parse_option_arguments(option or []))


def time_text(when_ms: int) -> str:
    """ISO text in UTC, to the second."""
    return datetime.fromtimestamp(when_ms / 1000, UTC).isoformat(sep=" ", timespec="seconds")[:-6]


def cell(value: Any) -> Text:
    """A value in a column for people: numbers with separators, unknown ones as a dash."""
    if value is None:
        return Text("-")
    if isinstance(value, dict):
        return Text(", ".join(f"{key}={text}" for key, text in value.items()))
    return Text(f"{value:,}" if isinstance(value, int) else str(value))
