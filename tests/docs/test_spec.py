"""The specification names every field that is stored, as it is stored: another implementation has only these pages."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

import objcat
from devkit.pages import FENCE
from devkit.paths import ROOT
from devkit.prose import Limits, words_of
from devkit.spec_examples import EXAMPLES, PAGE, examples_page, laid_out
from objcat.catalog import names
from objcat.metadata import files, manifest, partitioning, replay, schema, table_spec
from objcat.timeline import checkpoint, entry, intents, json_objects, position, redaction, shared_slots, txn_outcomes

STORED = (
    *(entry, files, table_spec, schema, partitioning, manifest, replay, names, checkpoint, txn_outcomes, position, redaction),
    json_objects,
    intents,
    shared_slots,
)
"""The modules whose structs are bytes of a bucket."""
NOT_STORED = {"LogSlice", "_Step", "_Version", "_RootVersion"}
"""Structs of these modules that stay in memory, or are the first look at an object that is then decoded."""
FOLDER = ROOT / "docs" / "spec"
PAGES = ("protocol", "reading", "format", "writing", "services")
WORDS_MAX = 12_000
MIRRORS_WORDS = 200
"""What `services.md` may have besides, for the section on mirrors."""
ADOPTION_WORDS = 360
"""What tables of other formats add."""
DEFAULTS_WORDS = 550
"""What defaults of columns and watermarks take."""
POSITIONS_WORDS = 650
"""What positions of sources and moves of tables add."""
GROUPS_WORDS = 760
"""What slots that writers share add."""
HINTS_WORDS = 240
"""What hints that carry entries add."""
SPEC_WORDS = 15_930


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


TEXTS = {name: (FOLDER / f"{name}.md").read_text() for name in PAGES}
SPEC = "\n".join(TEXTS.values())


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


# ------------------------------------------------------------------------------------------------------------ tables of fields

TABLES: dict[str, type[msgspec.Struct]] = {
    "## Entry": entry.Entry,
    "### Position": entry.PositionChange,
    "### Changes": files.TableDelta,
    "### Base file": files.BaseFile,
    "### Log file": files.LogObject,
    "### Footprint": entry.Footprint,
    "## Spec": table_spec.TableSpec,
    "### Columns": schema.Column,
    "## Partitions": partitioning.Partitioning,
    "### Root": checkpoint.Root,
    "## Intents and plans": intents.Intent,
    "## Requests": shared_slots.CommitRequest,
}
"""Headings of the format whose first table has the fields of a struct."""
BESIDES = {"min_client", "digest"}
"""Fields of an entry and of a root that are read before the struct is."""
SINCE = ("", "`1+`", "1+")


def fields_of(heading: str) -> dict[str, tuple[str, str]]:
    """The default and the format of every field of a table."""
    section = TEXTS["format"].partition(f"\n{heading}\n")[2]
    found = {}
    for row in section[section.index("| field |") :].partition("\n\n")[0].splitlines()[2:]:
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        for name in re.findall(r"`(\w+)`", cells[0]):
            found[name] = (cells[2].strip("`"), cells[3])
    return found


def default_of(field: msgspec.structs.FieldInfo) -> str:
    """The default of a field as the format says it."""
    if field.required:
        return "required"
    value: Any = field.default if field.default is not msgspec.NODEFAULT else field.default_factory()
    if value is msgspec.UNSET:
        return "null"
    return json.dumps(json.loads(msgspec.json.encode(value)))


@pytest.mark.parametrize("heading", TABLES)
def test_a_table_has_the_fields_and_defaults_of_the_code(heading: str) -> None:
    said = fields_of(heading)
    stored = {field.encode_name: default_of(field) for field in msgspec.structs.fields(TABLES[heading])}
    besides = {name for name in said if name in BESIDES and name not in stored}
    assert {name: default for name, (default, _) in said.items() if name not in besides and default} | {
        name: stored[name] for name, (default, _) in said.items() if name in stored and not default
    } == stored
    assert all(since in SINCE for _, since in said.values())


def test_requirements_are_numbered_in_order() -> None:
    for page, letter, least in (("reading", "R", 12), ("writing", "W", 12)):
        numbers = [int(number) for number in re.findall(rf"^- \*\*{letter}(\d+)\*\* ", TEXTS[page], re.MULTILINE)]
        assert numbers == list(range(1, len(numbers) + 1))
        assert len(numbers) >= least
        assert f"{letter}1 to {letter}{len(numbers)}," in TEXTS["protocol"]
        named = {int(number) for text in TEXTS.values() for number in re.findall(rf"\b{letter}(\d+)\b", text)}
        assert named <= set(numbers)


def test_the_specification_is_short() -> None:
    limits = Limits.load()
    assert sum(limits.words[f"docs/spec/{name}.md"] for name in PAGES) <= SPEC_WORDS
    assert sum(map(words_of, TEXTS.values())) <= SPEC_WORDS


def test_the_smallest_reader_is_small() -> None:
    pseudocode = next(body for _, body in FENCE.findall(TEXTS["reading"]) if body.startswith("read(table, slot)"))
    assert 40 < len(pseudocode.splitlines()) <= 65


def test_every_feature_of_the_code_is_in_the_table_of_versions() -> None:
    versions = TEXTS["protocol"].partition("## Versions of the format")[2]
    assert set(re.findall(r"^\| `(\w+)` \|", versions, re.MULTILINE)) == entry.READER_FEATURES | entry.WRITER_FEATURES


# -------------------------------------------------------------------------------------------------------------------- examples


def test_the_examples_are_those_of_the_tables() -> None:
    assert PAGE.read_text() == examples_page(), "run ./dev docs vectors"
    assert len(EXAMPLES) >= 15


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.title)
def test_an_example_is_what_objcat_reads_and_writes(example: Any) -> None:
    data = (ROOT / "spec" / "tables" / example.feature / "objects" / example.key).read_bytes()
    assert json.loads(laid_out(example.content())) == json.loads(data)
    if example.key.endswith("head.json"):
        assert msgspec.json.encode(msgspec.json.decode(data, type=checkpoint.Hint)) == data
    elif example.key.endswith("root.json"):
        root = checkpoint.decode_root(data, slot=json.loads(data)["slot"])
        assert checkpoint.encode_root(root) == data
    else:
        decoded = entry.decode_entry(data, key=example.key)
        assert entry.encode_entry(decoded) == data
        for raw in decoded.changes.values():
            delta = names.NamesDelta if "_catalog" in example.key else files.TableDelta
            assert json.loads(msgspec.json.encode(msgspec.json.decode(raw, type=delta))) == json.loads(bytes(raw))
