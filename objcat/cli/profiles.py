"""Connection profiles: lakes by a short name, with their store options, in a file of the user; and `objcat profiles`."""

from __future__ import annotations

import os
import shlex
import tomllib
from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from fileio.errors import InvalidConfig, MissingDependency
from fileio.options import nearest, redact, secret_options
from fileio.schemes import scheme_of
from objcat.catalog.names_plugin import split_catalog_options
from objcat.cli.output import draw, say, say_json, say_warning, sheet, words

PROFILE_VARIABLE = "OBJCAT_PROFILE"
EXAMPLE = '[prod] url = "s3://bucket/lake" and below it [prod.options] region = "eu-central-1"'


@dataclass(frozen=True, slots=True)
class Profile:
    """A lake by a name. `options`: of its store; they may hold secrets, so no `repr` shows them."""

    name: str
    url: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False)


chosen: ContextVar[Profile | None] = ContextVar("profile", default=None)
"""The profile of this call of the command line."""


def profiles_path() -> Path:
    """The file of the profiles: `objcat/profiles.toml` in the user's config folder."""
    configured = os.environ.get("XDG_CONFIG_HOME")
    return (Path(configured) if configured else Path.home() / ".config") / "objcat" / "profiles.toml"


def read_profiles() -> dict[str, Profile]:
    """All profiles, by name; none where there is no file. Raises InvalidConfig, which never repeats a value, because it may be secret."""
    path = profiles_path()
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidConfig(
            f"The profiles in {path} cannot be read: {type(error).__name__}. Check the file and its permissions."
        ) from error
    except tomllib.TOMLDecodeError as error:
        where = str(error)[str(error).rfind("(") :] if "(" in str(error) else ""
        raise InvalidConfig(f"The profiles in {path} are not valid TOML {where}. Write them like {EXAMPLE}") from None
    profiles = {name: _profile(path, name, value) for name, value in found.items()}
    _warn_of_rights(path, profiles.values())
    return profiles


_warned: set[Path] = set()
"""Files that this process has warned of."""


def _warn_of_rights(path: Path, profiles: Iterable[Profile]) -> None:
    """Warn once that others may read the secrets in the file, or write it and so choose another bucket."""
    rights = path.stat().st_mode if os.name == "posix" else 0
    writes, reads = rights & 0o022, rights & 0o044
    if path in _warned or not (writes or (reads and any(map(_has_secret, profiles)))):
        return
    _warned.add(path)
    what = "others may write" if writes else "others may read, and which has secrets"
    say_warning("ProfilesOpen", f"The profiles are in {path}, a file that {what}. Run chmod 600 {shlex.quote(str(path))}.")


def _has_secret(profile: Profile) -> bool:
    if split_catalog_options(profile.options)[1]:
        return True  # What is secret for a catalog of names, only its package knows.
    try:
        _, scheme = scheme_of(profile.url)
    except (InvalidConfig, MissingDependency):
        return bool(profile.options)
    return not secret_options(scheme.options_class).isdisjoint(profile.options)


def find_profile(name: str) -> Profile:
    """The profile of a name. Raises InvalidConfig."""
    profiles = read_profiles()
    if name in profiles:
        return profiles[name]
    if not profiles:
        raise InvalidConfig(f"There is no profile {name!r}, because {profiles_path()} has none. Write one into it, like {EXAMPLE}")
    raise InvalidConfig(f"There is no profile {name!r} in {profiles_path()}: {nearest(name, profiles)}")


def _profile(path: Path, name: str, value: Any) -> Profile:
    if not isinstance(value, dict) or not isinstance(value.get("url"), str):
        raise InvalidConfig(f"The profile {name!r} in {path} has no url. Write it like {EXAMPLE}")
    for key in value:
        if key not in ("url", "options"):
            raise InvalidConfig(f"The profile {name!r} in {path} has {key!r}, which is neither url nor options. Write it like {EXAMPLE}")
    options = value.get("options", {})
    if not isinstance(options, dict):
        raise InvalidConfig(f"The options of the profile {name!r} in {path} are not a table. Write them like {EXAMPLE}")
    for key, given in options.items():
        if not isinstance(given, (str, int, float, bool)):
            raise InvalidConfig(f"The option {key!r} of the profile {name!r} in {path} is neither text, a number nor a bool. Correct it.")
    return Profile(name, value["url"].rstrip("/"), {key: _text(given) for key, given in options.items()})


def _without_user(url: str) -> str:
    """A URL without the user part before an @, with which opening it fails."""
    scheme, slashes, rest = url.partition("://")
    host, slash, path = rest.partition("/")
    return url if "@" not in host else f"{scheme}{slashes}***@{host.rpartition('@')[2]}{slash}{path}"


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def profiles(as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """Show the connection profiles and the names of their options. Values may be secret, so they are not shown.

    `objcat --profile NAME COMMAND ...` uses one: URLs may then be names in its lake, and the lake itself may be left out.
    """
    rows = [{"name": one.name, "url": redact(_without_user(one.url)), "options": sorted(one.options)} for one in read_profiles().values()]
    if as_json:
        for row in rows:
            say_json(row)
        return
    if not rows:
        say(f"There are no profiles in {profiles_path()}. Write one into it, like {EXAMPLE}")
        return
    shown = sheet(f"profiles in {profiles_path()}")
    for title in ("name", "url", "options"):
        shown.add_column(title, overflow="fold")
    for row in rows:
        shown.add_row(words(str(row["name"])), words(str(row["url"])), words(", ".join(row["options"])))
    draw(shown)
