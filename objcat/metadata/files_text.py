"""`Files` as properties of a table in SQL, and back: `'source' = 's3://logs/**/*.json', 'source.format' = 'json'`.

The names after `source.` are the arguments of `Files`. Values are texts; a list has commas between its items, or is a list of JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from objcat.common.validation import shown
from objcat.errors import InvalidSql
from objcat.metadata.column_parts import precomputed_names
from objcat.metadata.in_place import FORMATS, Files, FilesInPlace
from objcat.metadata.table_spec import TableSpec

SOURCE = "source"
SOURCE_STAYS = (
    "The files of a table are said when it is created, and properties of a source do not change later. Nothing was done. CALL "
    "set_precomputed and precompute for precomputed columns, or create another table."
)
_PREFIX = "objcat."
"""May come before the name of a setting, as before all others of a table."""
_LISTS = ("patterns", "nulls", "precompute")
_PLAIN_NAME = re.compile(r"[^\W\d]\w*")


def _property_of(argument: str) -> str:
    return SOURCE if argument == "patterns" else f"{SOURCE}.{argument}"


SOURCE_PROPERTIES: Mapping[str, str] = {_property_of(one.name): one.name for one in fields(Files)}
"""The properties that say which files a table is over, each with its argument of `Files`."""


def is_of_source(name: str) -> bool:
    """Whether a property says something of the files of a table, in any case of letters."""
    return _plain(name).partition(".")[0] == SOURCE


def _plain(name: str) -> str:
    return name.lower().removeprefix(_PREFIX)


def files_of_properties(given: Mapping[str, str], types: Mapping[str, str]) -> Files:
    """The files that properties say, all of which are of a source.

    Args:
        given: texts by the name of the property.
        types: of the columns that are declared, for columns of the path without a type of their own.

    Raises:
        InvalidSql: a name is not known or a text does not parse. `check_files` checks the rest.
    """
    said: dict[str, str] = {}
    for name, text in given.items():
        plain = _plain(name)
        if plain not in SOURCE_PROPERTIES:
            raise InvalidSql(f"The property {name!r} is not known. Nothing was done. Known are {', '.join(SOURCE_PROPERTIES)}.")
        if plain in said:
            raise InvalidSql(f"The property {plain} is given twice, also as {name}. Nothing was done. Give it once.")
        said[plain] = text
    for needed, such_as in ((SOURCE, "s3://logs/app/**/*.json.gz"), (_property_of("format"), "json")):
        if needed not in said:
            known = f" or {', '.join(one for one in FORMATS if one != such_as)}" if needed != SOURCE else ""
            raise InvalidSql(f"A table over files needs the property {needed!r}, such as {such_as!r}{known}. Nothing was done. Add it.")
    arguments: Any = {SOURCE_PROPERTIES[name]: _value(name, text, types) for name, text in said.items()}
    return Files(**arguments)


def _value(name: str, text: str, types: Mapping[str, str]) -> Any:
    argument = SOURCE_PROPERTIES[name]
    if argument in _LISTS:
        return _items(name, text)
    if argument == "path_columns":
        return path_columns_of(name, text, types)
    if argument == "header":
        if text.strip().lower() not in ("true", "false"):
            raise InvalidSql(f"{name!r} is {shown(text)}. Nothing was done. Write 'true' or 'false'.")
        return text.strip().lower() == "true"
    return text


def _items(name: str, text: str) -> list[str]:
    """Texts between commas, without blanks around them; or the texts of a list of JSON."""
    if not text.lstrip().startswith("["):
        return [part.strip() for part in text.split(",")] if text or name == _property_of("nulls") else []
    try:
        found = json.loads(text)
    except ValueError as error:
        raise InvalidSql(f'{name!r} is {shown(text)}, which is no list of JSON ({error}). Nothing was done. Write ["a", "b"].') from error
    if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
        raise InvalidSql(f'{name!r} is {shown(text)}, which does not hold texts only. Nothing was done. Write ["a", "b"].')
    return found


def path_columns_of(name: str, text: str, types: Mapping[str, str]) -> dict[str, str]:
    """Columns of the path with their types, as in `day date, host`. Raises InvalidSql. `name`: of what the user gave."""
    found: dict[str, str] = {}
    # A type such as decimal(10, 2) has commas of its own.
    for part in re.split(r",(?![^()]*\))", text):
        match = re.fullmatch(r"\s*(?:`((?:[^`]|``)+)`|(\S+))\s*(.*?)\s*", part, re.DOTALL)
        if match is None:
            if text.strip():
                raise InvalidSql(f"{name!r} is {shown(text)}, where a name lacks. Nothing was done. Write 'day date, host'.")
            continue
        column = match[1].replace("``", "`") if match[1] else match[2]
        if column in found:
            raise InvalidSql(f"{name!r} names {column!r} twice. Nothing was done. Name it once.")
        found[column] = match[3] or types.get(column, "string")
    return found


def properties_of_files(spec: TableSpec, types: Mapping[str, str]) -> dict[str, str]:
    """The properties that create a table over the same files; none for another table, or one that was promoted.

    types: of its columns.
    """
    settings = spec.in_place
    if not isinstance(settings, FilesInPlace) or settings.promoted:
        return {}
    columns = [spec.table_schema.by_id(one).name for one in settings.path_columns]
    said: dict[str, Any] = {
        "patterns": [f"{source.url.rstrip('/')}/{source.pattern}" for source in settings.sources],
        "format": settings.format,
        "path_columns": ", ".join(f"{_quoted(name)} {types[name]}" for name in columns),
        **{name: getattr(settings, name) for name in ("line", "delimiter", "header", "nulls", "bad_rows", "on_change", "on_missing")},
        "precompute": precomputed_names(spec),
    }
    usual = {one.name: one.default for one in fields(Files)} | {"path_columns": ""}
    return {_property_of(name): _text(value) for name, value in said.items() if (tuple(value) if name in _LISTS else value) != usual[name]}


def _quoted(name: str) -> str:
    return name if _PLAIN_NAME.fullmatch(name) else f"`{name.replace('`', '``')}`"


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return value
    items = list(value)
    is_clear = items and all(one and one == one.strip() and "," not in one and not one.startswith("[") for one in items)
    return ", ".join(items) if is_clear else json.dumps(items, ensure_ascii=False)
