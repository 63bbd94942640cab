"""Options of a store: typed, frozen, checked against their documented names, and never showing a secret.

Every scheme has one frozen dataclass of options. Field types are `str`, `int`, `float`, `bool`, each also `| None`, and `Secret | None`.
The mapping that a user gives is text or such values; `parse_options` converts it.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import logging
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
"""Valid words that a hint names: a lake has thousands of tables."""


class Secret:
    """A string that shows itself only to who calls `reveal`. Pickles with its value, so that an executor can open the same store."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        """The string itself, for the SDK and for nobody else."""
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
    """What a file holds that somebody else keeps fresh, without the white space around it. Raises CredentialsError.

    option: whose value the path is.
    """
    try:
        with open(path, encoding="ascii") as file:
            held = file.read().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise CredentialsError(f"the option {option!r} names {path!r}, which cannot be read: {error}") from error
    if not held:
        raise CredentialsError(f"the option {option!r} names {path!r}, which is empty: write the token to it")
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
    # A password with a slash or an @ in it: up to the last @.
    (re.compile(r"(//)[^/@\s:]*:[^\s'\"<>]*@"), r"\1***@"),
    (re.compile(r"(//)[^/@\s]+@"), r"\1***@"),
)


def redact(text: str, secrets: Iterable[Secret | None] = ()) -> str:
    """`text` with every given secret, and whatever looks like a signature, token or account key, replaced by `***`."""
    for secret in secrets:
        if secret is not None and secret.reveal():
            text = text.replace(secret.reveal(), "***")
    for pattern, replacement in _SECRET_TEXTS:
        text = pattern.sub(replacement, text)
    return text


class _HideSecrets(logging.Filter):
    """Takes secrets out of records: SDKs log requests and answers whole at level DEBUG."""

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
    """Take `secrets`, and whatever looks like one, out of all that the loggers of these packages say in this process from now on.

    A filter belongs to one logger and not to those below it, so a package must be imported before.
    """
    _hide_secrets.secrets |= {secret for secret in secrets if secret is not None and secret.reveal()}
    for name in list(logging.root.manager.loggerDict):
        if any(name == package or name.startswith(package + ".") for package in packages):
            logging.getLogger(name).addFilter(_hide_secrets)


def check_proxy(proxy: Secret | None, *, where: str) -> None:
    """Refuse a proxy, the given one or else those of the environment, with a user or password that libraries read as a host, a port or a
    path: their errors would show it. Raises InvalidConfig, which does not.
    """
    given = {"the option 'proxy'": proxy.reveal()} if proxy is not None else {}
    if proxy is None:
        given = {f"the environment's {scheme}_proxy": url for scheme, url in getproxies_environment().items() if scheme != "no"}
    for what, url in given.items():
        user = url.partition("//")[2].rpartition("@")[0] if "//" in url else url.rpartition("@")[0]
        if re.search(r"[/?#\\\s]", user):
            raise InvalidConfig(
                f"{where}: user and password of {what} hold a character that ends them: write / as %2F, ? as %3F, # as %23, \\ as %5C "
                "and a space as %20"
            )


def quote_path(path: str) -> str:
    """The path of a URL: what cannot stand there as it is (`?`, `#`, `%`, spaces, other than ASCII) is percent-encoded.

    What may stand there does, so that partition directories (`city=Rome`) are read as they are written.
    """
    return quote(path, safe="/=+,:@!$&'()*;~", errors="surrogateescape")


def unquote_path(path: str) -> str:
    """What `quote_path` was given. Bytes other than UTF-8, which names of directories may have, come back as the system's functions take
    them."""
    return unquote(path, errors="surrogateescape")


def nearest(name: str, valid: Iterable[str]) -> str:
    """A hint that names the valid word nearest to `name`: `did you mean 'endpoint'?`, or all of them, up to a bound, when none is near."""
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
    """An instance of the options dataclass from what a user gave. Raises InvalidConfig that names the nearest valid option."""
    kind: Any = options_class
    hints = _hints_of(kind)
    values: dict[str, Any] = {}
    for name, value in given.items():
        if name not in hints:
            raise InvalidConfig(f"{where} has no option {name!r}: {nearest(name, hints)}")
        values[name] = _convert(name, value, hints[name], where=where)
    missing = [
        f.name
        for f in dataclasses.fields(options_class)  # type: ignore[arg-type]
        if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING and f.name not in values
    ]
    if missing:
        raise InvalidConfig(f"{where} needs the option {missing[0]!r}")
    return options_class(**values)


@functools.cache
def _hints_of(options_class: type) -> Mapping[str, Any]:
    """The types of the options. Python compiles each of them from its text, which is most of the work of describing a store."""
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
    raise InvalidConfig(f"{where}: option {name!r} must be {kind.__name__.lower()}, but is {shown}")
