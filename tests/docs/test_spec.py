"""The specification names every field that is stored: another implementation has only that page."""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec
import pytest

import objcat
from devkit.pages import FENCE
from devkit.paths import ROOT
from objcat.catalog import names
from objcat.metadata import files, manifest, partitioning, replay, schema, table_spec
from objcat.timeline import checkpoint, entry, json_objects, redaction, txn_outcomes

STORED = (entry, files, table_spec, schema, partitioning, manifest, replay, names, checkpoint, txn_outcomes, redaction, json_objects)
"""The modules whose structs are bytes of a bucket."""
NOT_STORED = {"LogSlice", "_Step", "_Version", "_RootVersion"}
"""Structs of these modules that stay in memory, or are the first look at an object that is then decoded."""


def structs() -> Iterator[type[msgspec.Struct]]:
    """What is stored, without what objcat exports, which is arguments of users."""
    left_out = {*NOT_STORED, *objcat.__all__}
    for module in STORED:
        for value in vars(module).values():
            is_struct = isinstance(value, type) and issubclass(value, msgspec.Struct) and value.__module__ == module.__name__
            if is_struct and value.__name__ not in left_out:
                yield value


def code_of(text: str) -> str:
    """The code spans and fences of a page: where it names fields."""
    spans = re.findall(r"`([^`\n]+)`", FENCE.sub("", text))
    indented = re.findall(r"^ {4}.+$", text, re.MULTILINE)
    return "\n".join([*spans, *(body for _, body in FENCE.findall(text)), *indented])


def missing(text: str, fields: tuple[str, ...]) -> list[str]:
    code = code_of(text)
    return [field for field in fields if not re.search(rf"(?<![\w-]){re.escape(field)}(?![\w-])", code)]


SPEC = (ROOT / "docs" / "spec" / "protocol.md").read_text()


@pytest.mark.parametrize("struct", list(structs()), ids=lambda struct: f"{struct.__module__}.{struct.__name__}")
def test_the_specification_names_every_stored_field(struct: type[msgspec.Struct]) -> None:
    config = struct.__struct_config__
    tag = config.tag
    # An array has positions, not names.
    assert missing(SPEC, () if config.array_like else struct.__struct_encode_fields__) == []
    assert missing(SPEC, (tag,) if isinstance(tag, str) else ()) == []


def test_structs_that_are_not_stored_are_there() -> None:
    defined = {name for module in STORED for name, value in vars(module).items() if isinstance(value, type)}
    assert defined >= NOT_STORED


@pytest.mark.parametrize("text", ["`slot`\n", "```text\nslot n\n```\n", "    slot\n", "`entry.slot`"])
def test_a_field_is_found_in_code(text: str) -> None:
    assert missing(text, ("slot",)) == []


@pytest.mark.parametrize("text", ["slot\n", "`slots`\n", "`slot_min`\n", "`time-slot`"])
def test_a_field_that_is_missing_is_found(text: str) -> None:
    assert missing(text, ("slot", "at")) == ["slot", "at"]
