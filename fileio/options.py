"""Options of a store: typed, frozen, checked by name, and without secrets in any text.

Every scheme has one frozen dataclass of options. The type of a field is `str`, `int`, `float` or `bool`, or one of these `| None`, or
`Secret | None`. `parse_options` converts the text or values that a user passes.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import logging
import os
import re
import types
import typing
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar
from urllib.parse import quote, unquote
from urllib.request import getproxies_environment

from fileio.errors import CredentialsError, InvalidConfig

O = TypeVar("O")  # noqa: E741

NAMED_MAX = 30
"""The largest number of words in a hint: a lake has thousands of tables."""


class Secret:
    """A string that only `reveal` shows. It is pickled with its value, so that a Spark executor can open the same store."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        """The string itself. Pass it to the SDK only."""
        return self._value

    def __repr__(self) -> str:
        return "Secret(***)"

    __str__ = __repr__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._value == self._value

    def __hash__(self) -> int:
        return hash(self._value)

    def __reduce__(self) -> tuple[type[Secret], tuple[str]]:
        return (Secret, (self._value,))


def read_secret(path: str, *, option: str) -> str:
    """Read a secret from a file that another program keeps fresh, without surrounding white space.

    Args:
        path: The path of the file.
        option: The name of the option that holds the path, for the message.

    Raises:
        CredentialsError: The file cannot be read, or is empty.
    """
    try:
        with open(path, encoding="ascii") as file:
            held = file.read().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise CredentialsError(
            f"The option {option!r} names {path!r}, which cannot be read ({error}). Check the path and its permissions."
        ) from error
    if not held:
        raise CredentialsError(f"The option {option!r} names {path!r}, which is empty. Write the token to it.")
    return held


_SECRET_NAMES = "|".join(
    (
        *("sig", "signature", "x-amz-signature", "x-amz-security-token", "x-amz-credential", "accountkey", "sharedaccesssignature"),
        *("access_token", "token", "password", "secret", "secret_?access_?key", "upload_id"),
    )
)
_SECRET_TEXTS = (
    (re.compile(rf"(?i)((?:{_SECRET_NAMES})['\"]?\s*[=:]\s*['\"]?)[^\s&;,'\"<>]+"), r"\1***"),
    (re.compile(r"(?i)(private_key['\"]?\s*:\s*['\"])[^'\"]+"), r"\1***"),
    (re.compile(r"(?i)(bearer\s+|sharedkey\s+)[^\s'\"<>]+"), r"\1***"),
    (re.compile(r"(?i)(<(?:SecretAccessKey|SessionToken)>)[^<]+"), r"\1***"),
    # A password may hold a slash or an @: it ends at the last @.
    (re.compile(r"(//)[^/@\s:]*:[^\s'\"<>]*@"), r"\1***@"),
    (re.compile(r"(//)[^/@\s]+@"), r"\1***@"),
)


def redact(text: str, secrets: Iterable[Secret | None] = ()) -> str:
    """Replace all `secrets` in `text`, and what looks like a signature, token or account key, by `***`."""
    for secret in secrets:
        if secret is not None and secret.reveal():
            text = text.replace(secret.reveal(), "***")
    for pattern, replacement in _SECRET_TEXTS:
        text = pattern.sub(replacement, text)
    return text


class _HideSecrets(logging.Filter):
    """Removes secrets from log records: at level DEBUG, SDKs log whole requests and answers."""

    def __init__(self) -> None:
        super().__init__()
        self.secrets: frozenset[Secret] = frozenset()

    def filter(self, record: logging.LogRecord) -> bool:
        record.msg, record.args = redact(record.getMessage(), self.secrets), ()
        if record.exc_info:
            record.exc_text = redact(logging.Formatter().formatException(record.exc_info), self.secrets)
            record.exc_info = None
        return True


_hide_secrets = _HideSecrets()


def hide_in_logs(packages: Iterable[str], secrets: Iterable[Secret | None]) -> None:
    """Remove `secrets`, and what looks like one, from all log records of these packages, from now on in this process.

    Import the packages first: a filter belongs to one logger, and not to the loggers below it.
    """
    _hide_secrets.secrets |= {secret for secret in secrets if secret is not None and secret.reveal()}
    for name in list(logging.root.manager.loggerDict):
        if any(name == package or name.startswith(package + ".") for package in packages):
            logging.getLogger(name).addFilter(_hide_secrets)


def check_proxy(proxy: Secret | None, *, where: str) -> None:
    """Refuse a proxy whose user or password has a character that libraries read as the end of the host. Their errors would show it.

    Args:
        proxy: The URL of the proxy; None checks those of the environment.
        where: The URL of the store, for the message.

    Raises:
        InvalidConfig: There is such a character. The message does not show it.
    """
    given = {"the option 'proxy'": proxy.reveal()} if proxy is not None else {}
    if proxy is None:
        given = {f"the environment's {scheme}_proxy": url for scheme, url in getproxies_environment().items() if scheme != "no"}
    for what, url in given.items():
        user = url.partition("//")[2].rpartition("@")[0] if "//" in url else url.rpartition("@")[0]
        if re.search(r"[/?#\\\s]", user):
            raise InvalidConfig(
                f"For {where}, user and password of {what} hold a character that ends them. "
                "Write / as %2F, ? as %3F, # as %23, \\ as %5C and a space as %20."
            )


def quote_path(path: str) -> str:
    """Percent-encode a path for a URL: `?`, `#`, `%`, spaces and everything but ASCII.

    Characters that a path may hold stay, so partition directories (`city=Rome`) remain readable.
    """
    return quote(path, safe="/=+,:@!$&'()*;~", errors="surrogateescape")


def unquote_path(path: str) -> str:
    """The inverse of `quote_path`. Bytes that are not UTF-8, as in names of directories, use Python's surrogate escapes."""
    return unquote(path, errors="surrogateescape")


def nearest(name: str, valid: Iterable[str]) -> str:
    """A hint with the valid word nearest to `name`, such as `did you mean 'endpoint'?`.

    When no word is near, it lists the valid words, at most `NAMED_MAX`.
    """
    names = sorted(valid)
    close = [word for word in names if word.casefold() == name.casefold()] or difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    if close:
        return f"did you mean {close[0]!r}?"
    more = f" and {len(names) - NAMED_MAX} more" if len(names) > NAMED_MAX else ""
    return f"valid ones are {', '.join(names[:NAMED_MAX])}{more}"


def secret_options(options_class: type) -> frozenset[str]:
    """The names of the options whose values are secret."""
    hints = _hints_of(options_class)
    return frozenset(name for name, hint in hints.items() if hint is Secret or Secret in typing.get_args(hint))


def parse_options(options_class: type[O], given: Mapping[str, Any], *, where: str) -> O:
    """The options dataclass with the values that a user passed.

    Args:
        options_class: The dataclass.
        given: The names and values.
        where: The URL of the store, for the message.

    Raises:
        InvalidConfig: A name or value is wrong. The message names the nearest option.
    """
    kind: Any = options_class
    hints = _hints_of(kind)
    values: dict[str, Any] = {}
    for name, value in given.items():
        if name not in hints:
            raise InvalidConfig(f"{where} has no option {name!r} ({nearest(name, hints)}).")
        values[name] = _convert(name, value, hints[name], where=where)
    missing = [
        f.name
        for f in dataclasses.fields(options_class)  # type: ignore[arg-type]
        if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING and f.name not in values
    ]
    if missing:
        raise InvalidConfig(f"{where} needs the option {missing[0]!r}. Pass it.")
    return options_class(**values)


@functools.cache
def _hints_of(options_class: type) -> Mapping[str, Any]:
    """The types of the options, cached: Python compiles each from text, which takes most of the time to describe a store."""
    return types.MappingProxyType(typing.get_type_hints(options_class))


def _convert(name: str, value: Any, hint: Any, *, where: str) -> Any:
    kinds = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
    if value is None and type(None) in kinds:
        return None
    kind = next(k for k in kinds if k is not type(None))
    if isinstance(value, kind) and not (kind is int and isinstance(value, bool)):
        return value
    try:
        if kind is Secret and isinstance(value, str):
            return Secret(value)
        if kind is bool and isinstance(value, str):
            return {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}[value.lower()]
        if kind in (int, float) and isinstance(value, (str, int)) and not isinstance(value, bool):
            return kind(value)
    except (ValueError, KeyError):
        pass
    shown = "a secret value" if kind is Secret else repr(value)
    raise InvalidConfig(f"For {where}, the option {name!r} must be {kind.__name__.lower()}, but is {shown}.")


ELSEWHERE = (
    *("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_PROFILE", "AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"),
    *("AZURE_STORAGE_ACCOUNT", "AZURE_STORAGE_CONNECTION_STRING", "STORAGE_EMULATOR_HOST"),
)
"""Variables of the environment by which the same URL and options lead to another store."""


def surroundings() -> tuple[str | None, ...]:
    """What the environment says of servers, accounts and profiles now."""
    return tuple(map(os.environ.get, ELSEWHERE))
