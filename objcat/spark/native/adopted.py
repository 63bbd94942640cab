"""Adopted base files as relations: Parquet files of other tools, whose columns have other names, or are missing.

Files that agree on both have one *layout*, and are one relation. The value of a missing column comes with each file, as a constant of text
that is cast to the type of the column. So Spark leaves out files by it, as by a partition value.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from objcat.metadata.files import Adoption, BaseFile, FileGroup, Value
from objcat.metadata.schema import Column
from objcat.spark.native.relation import Constant, internal

LAYOUTS_MAX = 32
"""Layouts of adopted files in one plan, each a relation of its own. Python workers read the files of further ones."""
_NULL, _KNOWN = "n", "v"
"""The first character of a value as text."""


@dataclass(frozen=True, slots=True)
class AdoptedLayout:
    """How some adopted files hold the columns of the table.

    Attributes:
        names: column ids, each with the name of the column in these files, where that is not the physical name. Ascending.
        missing: ids of the columns whose value is the same in all rows of a file, whatever the file has. Ascending.
    """

    names: tuple[tuple[int, str], ...]
    missing: tuple[int, ...]

    def columns_in_files(self, columns: Sequence[Column]) -> tuple[Column, ...]:
        """The columns that Spark reads from the files, under the names that they have there."""
        names = dict(self.names)
        return tuple(replace(one, physical=names.get(one.id, one.physical)) for one in columns if one.id not in self.missing)

    def constants(self, columns: Sequence[Column]) -> dict[int, Constant]:
        """By id, the columns that come as constants of text."""
        return {one.id: Constant(f"_objcat_value_{one.id}", "string") for one in columns if one.id in self.missing}

    def expressions(self, columns: Sequence[Column]) -> list[str]:
        """SQL of all columns under their internal names."""
        constants = self.constants(columns)
        return [f"{_sql_of(one, constants[one.id].name)} AS {internal(one)}" if one.id in constants else internal(one) for one in columns]


def layout_of(adopted: Adoption) -> AdoptedLayout:
    """The layout of an adopted file."""
    return AdoptedLayout(tuple(sorted(adopted.names.items())), tuple(sorted(adopted.values)))


def native_layouts(groups: Iterable[FileGroup]) -> frozenset[AdoptedLayout]:
    """The layouts of the adopted files of a plan that become relations: the most frequent ones."""
    counts = Counter(layout_of(adopted) for group in groups if (adopted := _adopted(group)) is not None and adopted.source is None)
    return frozenset(layout for layout, _ in counts.most_common(LAYOUTS_MAX))


def is_native(group: FileGroup, layouts: frozenset[AdoptedLayout]) -> bool:
    """Whether Spark reads the files of a file group itself. layouts: of `native_layouts`."""
    adopted = _adopted(group)
    return adopted is None or (adopted.source is None and layout_of(adopted) in layouts)


def text_of(file: BaseFile, column_id: int) -> str:
    """The value of a missing column of a file, as a constant holds it."""
    assert file.adopted is not None
    return _text(file.adopted.values[column_id])


def _adopted(group: FileGroup) -> Adoption | None:
    return None if group.base is None else group.base.adopted


def _text(value: Value) -> str:
    if value is None:
        return _NULL
    return _KNOWN + (str(value).lower() if isinstance(value, bool) else str(value))


_PLACES: Mapping[str, str] = {
    "string": "{text}",
    "binary": "unhex({text})",
    "date": "date_from_unix_date(try_cast({text} AS int))",
    "timestamp": "timestamp_micros(try_cast({text} AS bigint))",
    "timestamp_ntz": (
        "TIMESTAMP_NTZ '1970-01-01 00:00:00' + "
        "make_dt_interval(0, 0, 0, cast(try_cast({text} AS decimal(20, 0)) / 1000000 AS decimal(18, 6)))"
    ),
}


def _sql_of(column: Column, constant: str) -> str:
    """The value of a constant in the type of a column. No setting of a session matters."""
    kind = str(column.type)
    text = f"substring({constant}, 2)"
    value = _PLACES.get(kind, f"try_cast({{text}} AS {kind})").format(text=text)
    return f"CASE WHEN {constant} = '{_NULL}' THEN NULL ELSE {value} END"
