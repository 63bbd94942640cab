"""Checks of arguments, one for each kind. They raise InvalidInput before anything is read or written.

what: how the caller names the argument, for the error.
"""

from __future__ import annotations

import datetime as dt
import re
import unicodedata
from collections.abc import Iterable, Mapping
from typing import Any, Literal, TypeAlias, TypeVar

from fileio.optional import library
from fileio.options import nearest
from objcat.errors import InvalidInput

T = TypeVar("T")

# The words of options. Each is also checked where it is used.
TableType: TypeAlias = Literal["merge_on_read", "copy_on_write"]
AsOf: TypeAlias = int | str | dt.datetime
KeyScope: TypeAlias = Literal["table", "partition"]
SchemaModeName: TypeAlias = Literal["strict", "add", "widen"]
ScanMode: TypeAlias = Literal["snapshot", "read_optimized"]
IsolationName: TypeAlias = Literal["snapshot", "serializable"]
OperationName: TypeAlias = Literal["upsert", "insert", "delete", "overwrite"]
OnExisting: TypeAlias = Literal["replace", "skip", "fail"]
IfExists: TypeAlias = Literal["upsert", "insert", "error"]
SortName: TypeAlias = Literal["none", "partition"]
GroupOrder: TypeAlias = Literal["log_bytes", "log_count", "newest"]

SECONDS_MAX = 1e11
"""About three thousand years. A longer span is a mistake."""
SHOWN_CHARACTERS_MAX = 100

_UNITS_MS = {"second": 1000, "minute": 60_000, "hour": 3_600_000, "day": 86_400_000, "week": 604_800_000}
_SPAN = re.compile(r"\s*(\d{1,9}(?:\.\d{1,3})?)\s*((?:second|minute|hour|day|week)s?)\s*", re.IGNORECASE)


def whole_number(value: Any, *, what: str, least: int | None = 0, most: int | None = None) -> int:
    """A plain int between `least` and `most`, both included. A bool is no number here, nor is a whole float."""
    if type(value) is not int or (least is not None and value < least) or (most is not None and value > most):
        raise InvalidInput(f"{what}={shown(value)} is not a whole number{_range_text(least, most)}. Give one as an int.")
    return value


def seconds(value: Any, *, what: str) -> float:
    """A time span: an int or a float of 0 or more, neither NaN nor infinite."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= SECONDS_MAX:
        raise InvalidInput(f"{what}={shown(value)} is not a time span. Give seconds, a number from 0 to {SECONDS_MAX:.0e}.")
    return value


def span_ms(value: Any, *, what: str) -> int:
    """Milliseconds of a positive time span: a timedelta, or text such as `7 days` or `90 minutes`."""
    found: float | None = None
    if isinstance(value, dt.timedelta):
        found = value / dt.timedelta(milliseconds=1)
    elif isinstance(value, str) and (match := _SPAN.fullmatch(value)):
        found = float(match[1]) * _UNITS_MS[match[2].lower().rstrip("s")]
    if found is None or not 1 <= found <= SECONDS_MAX * 1000:
        units = ", ".join(f"{unit}s" for unit in _UNITS_MS)
        raise InvalidInput(f"{what}={shown(value)} is not a time span. Give a datetime.timedelta, or text such as '7 days' ({units}).")
    return int(found)


def text(value: Any, *, what: str, empty: bool = False) -> str:
    """Text that UTF-8 can hold. empty: whether it may be empty."""
    if not isinstance(value, str):
        raise InvalidInput(f"{what}={shown(value)} is not text. Give a str.")
    if not value and not empty:
        raise InvalidInput(f"{what} is empty. Give a text.")
    check_unicode(value, what=what)
    return value


def text_mapping(value: Any, *, what: str) -> dict[str, str]:
    """A mapping from text to text that UTF-8 can hold. A log with anything else could not be read again."""
    if not isinstance(value, Mapping):
        raise InvalidInput(f"{what} is {shown(value)}. Nothing was written. Give a dict of texts, {{'key': 'value'}}.")
    for pair in value.items():
        for one in pair:
            if not isinstance(one, str):
                raise InvalidInput(f"{what} holds {shown(pair)}, in which {shown(one)} is not text. Nothing was written. Use str(...).")
            check_unicode(one, what=what)
    return dict(value)


def name_list(value: Any, *, what: str) -> list[str]:
    """A list of names. A single text is refused: Python would take it for a list of letters."""
    if isinstance(value, str):
        raise InvalidInput(f"{what} is the text {shown(value)}. Give a list of names, [{shown(value)}].")
    if not isinstance(value, Iterable) or isinstance(value, (bytes, Mapping)):
        raise InvalidInput(f"{what} is {shown(value)}. Give a list of names.")
    found = list(value)
    for name in found:
        if not isinstance(name, str):
            raise InvalidInput(f"{what} holds {shown(name)}, which is not text. Give a list of names.")
        check_unicode(name, what=what)
    return found


def one_of(value: Any, choices: Iterable[str], *, what: str) -> str:
    """One of some words."""
    known = [str(choice) for choice in choices]
    if not isinstance(value, str) or value not in known:
        hint = nearest(value, known) if isinstance(value, str) else f"valid ones are {', '.join(sorted(known))}"
        raise InvalidInput(f"{what}={shown(value)} is not known to this version ({hint}).")
    return value


def instance(value: Any, kind: type[T], *, what: str, such_as: str) -> T:
    """A value of a type. such_as: how one is written."""
    if not isinstance(value, kind):
        raise InvalidInput(f"{what} is {shown(value)}. Give {such_as}.")
    return value


def instances(value: Any, kind: type[T], *, what: str, such_as: str) -> list[T]:
    """A list of values of a type. such_as: how such a list is written."""
    if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Iterable):
        raise InvalidInput(f"{what} is {shown(value)}. Give {such_as}.")
    found = list(value)
    for one in found:
        if not isinstance(one, kind):
            raise InvalidInput(f"{what} holds {shown(one)}. Give {such_as}.")
    return found


def session(value: Any) -> Any:
    """A running Spark session of any kind."""
    if not hasattr(value, "createDataFrame"):
        library("pyspark", needed_by="a session of Spark needs", extra="spark")
        raise InvalidInput(f"spark is {shown(value)}. Give a session, SparkSession.builder.getOrCreate().")
    context = getattr(value, "_sc", None)
    if context is not None and context._jsc is None:
        raise InvalidInput("spark is a stopped session. Nothing was done. Give one that runs, SparkSession.builder.getOrCreate().")
    return value


def moment_ms(value: Any, *, what: str) -> int:
    """Milliseconds since 1970 UTC of a datetime or ISO 8601 text. Without a zone it is UTC."""
    if not isinstance(value, (str, dt.datetime)):
        raise InvalidInput(f"{what}={shown(value)} is neither a slot nor a time. Give an int, a datetime, or ISO 8601 text.")
    try:
        moment = dt.datetime.fromisoformat(value) if isinstance(value, str) else value
    except ValueError as error:
        raise InvalidInput(f"{what}={shown(value)} is not a time. Write ISO 8601, e.g. '2026-11-20 09:00'.") from error
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=dt.UTC)
    return int(moment.timestamp() * 1000)


def case_folded(name: str) -> str:
    """The comparison form of a name: equal for two names that mean the same.

    Names are stored as they were written. They are compared without case, by Unicode's full case folding, and without regard to composition
    (NFC or NFD).
    """
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())


def nearest_name(name: str, valid: Iterable[str]) -> str:
    """As `nearest`, for names of columns. Where two look the same but differ, both are shown by their code points."""
    known = list(valid)
    alike = [one for one in known if case_folded(one) == case_folded(name) and one.lower() != name.lower()]
    if alike:
        same = "which differs in case or Unicode normalisation alone"
        return f"the table has {alike[0]!a}, and this is {name!a}, {same}. Use the spelling of the table"
    return nearest(name, known)


def check_unicode(value: str, *, what: str) -> None:
    """Refuse text with a lone surrogate, which UTF-8 cannot hold."""
    if not is_unicode(value):
        raise InvalidInput(f"{what} holds {shown(value)}, which is not valid Unicode. Nothing was written. Correct that text.")


def is_unicode(value: str) -> bool:
    """Whether UTF-8 can hold a text."""
    if value.isascii():
        return True
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def shown(value: Any) -> str:
    """A value as an error quotes it: on one line, and not too long."""
    try:
        said = repr(value)
    except Exception:  # noqa: BLE001 - a user's own type may fail to show itself
        said = f"a {type(value).__name__}"
    said = " ".join(said.split())
    return said if len(said) <= SHOWN_CHARACTERS_MAX else f"{said[:SHOWN_CHARACTERS_MAX]}..."


def _range_text(least: int | None, most: int | None) -> str:
    if least is None:
        return "" if most is None else f" up to {most:,}"
    return f" from {least:,} up" if most is None else f" from {least:,} to {most:,}"
