"""What the commands share: exit codes, options, and opening the lake or table of a URL."""

from __future__ import annotations

import re
from typing import Annotated

import typer

from fileio.errors import InvalidConfig
from objcat.cli.profiles import chosen
from objcat.lake.lake import Lake, connect
from objcat.lake.urls import find_table, split_url
from objcat.table.table import Table

EXIT_NO = 1
EXIT_WRONG = 2

Option = Annotated[list[str] | None, typer.Option("--option", "-o", metavar="KEY=VALUE", help="An option of the store. You may repeat it.")]
TableUrl = Annotated[
    str,
    typer.Argument(
        help="The URL of the lake, a slash, and the name of the table, such as s3://bucket/lake/city.trips. "
        "A table without a lake has its own URL.",
        metavar="TABLE",
    ),
]
LakeUrl = Annotated[
    str | None, typer.Argument(help="The URL of the lake, such as s3://bucket/lake. With --profile you may leave it out.", metavar="LAKE")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what the command would do, and change nothing.")]

_ABSOLUTE = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:|[/.~]")


def parse_option_arguments(arguments: list[str]) -> dict[str, str]:
    """Options of a store from arguments `key=value`. Raises InvalidConfig, which never repeats a value, because it may be secret."""
    options: dict[str, str] = {}
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if not key or not equals:
            raise InvalidConfig("An option does not have the form KEY=VALUE. Write it like --option region=eu-central-1.")
        options[key] = value
    return options


def is_place(argument: str) -> bool:
    """Whether an argument is a URL or a path, not a name in the lake of a profile."""
    return _ABSOLUTE.match(argument) is not None


def placed(url: str | None, option: list[str] | None) -> tuple[str, dict[str, str]]:
    """The URL and the store options, from arguments and profile. Raises InvalidConfig."""
    options = parse_option_arguments(option or [])
    profile = chosen.get()
    if profile is None:
        if url is None:
            raise InvalidConfig(
                "There is no lake in the call. Write its URL, for example s3://bucket/lake, or choose one with `objcat --profile NAME`."
            )
        return url, options
    if url is None:
        url = profile.url
    elif not is_place(url):
        url = f"{profile.url}/{url}"
    return url, {**profile.options, **options}


def open_lake(url: str | None, option: list[str] | None) -> Lake:
    """The lake at a URL. Raises InvalidConfig."""
    return connect(*placed(url, option))


def open_table(url: str, option: list[str] | None) -> Table:
    """The table at a URL, in a lake or without one. Raises InvalidConfig, InvalidInput, TableNotFound."""
    return find_table(*placed(url, option))


def lake_and_name(url: str, option: list[str] | None) -> tuple[Lake, str]:
    """The lake of a table's URL, and the table's name in it. Raises InvalidConfig, InvalidInput."""
    place, options = placed(url, option)
    above, name = split_url(place)
    return connect(above, options), name
