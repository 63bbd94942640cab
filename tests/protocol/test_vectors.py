"""spec/vectors/: what the code computes, and what a second implementation of the pages computes from them alone."""

from __future__ import annotations

import base64
import hashlib
import json
from decimal import Decimal
from typing import Any

import pytest
import xxhash

from devkit.paths import ROOT
from devkit.spec_values import from_json
from devkit.spec_vectors import vectors
from tests.protocol import reader

MADE = vectors()
FOLDER = ROOT / "spec" / "vectors"


def stored(name: str) -> Any:
    return json.loads((FOLDER / name).read_text())


@pytest.mark.parametrize("name", MADE)
def test_vectors_are_what_the_code_computes(name: str) -> None:
    assert (FOLDER / name).read_text() == MADE[name], "run ./dev docs vectors, unless the code is wrong: stored values depend on these"


def test_no_vector_is_left_over() -> None:
    assert {path.name for path in FOLDER.iterdir()} == set(MADE)


def key_of(vector: Any) -> list[tuple[str, Any]]:
    return [(kind, from_json(value, kind)) for kind, value in zip(vector["types"], vector["values"], strict=True)]


def test_hashes_by_the_second_reader() -> None:
    for vector in stored("hash.json")["keys"]:
        key = key_of(vector)
        assert reader.hash_key(key) == vector["hash"], vector
        assert {count: reader.bucket_of(key, int(count)) for count in vector["buckets"]} == vector["buckets"], vector


@pytest.mark.parametrize(
    ("types", "value"),
    [
        (["string"], "Zürich"),
        (["string"], ""),
        (["string"], "abcü"),
        (["binary"], "80"),
        (["boolean"], True),
        (["date"], "1969-12-31"),
        (["timestamp"], "2026-11-21T09:30:01.000005Z"),
        (["float"], "NaN"),
        (["double"], "-0.0"),
        *((["decimal(18,0)"], number) for number in ("127", "128", "-129")),
        *((["decimal(19,0)"], number) for number in ("127", "128", "-128", "-129")),
    ],
)
def test_the_traps_are_there(types: list[str], value: Any) -> None:
    assert any(vector["types"] == types and vector["values"] == [value] for vector in stored("hash.json")["keys"])


def test_digests_of_keys_by_the_second_reader() -> None:
    content = stored("key_digests.json")
    numbers = []
    for vector in content["keys"]:
        hashed = [*([] if vector["partition"] is None else [("string", vector["partition"])]), *key_of(vector)]
        number = (reader.hash_key(hashed) % 2**32) << 32 | reader.hash_key([("int", 0), *hashed]) % 2**32
        assert f"{number:016x}" == vector["digest"], vector
        numbers.append(number)
    assert content["set"] == {
        "count": len(numbers),
        "inline": base64.b64encode(b"".join(number.to_bytes(8, "little") for number in sorted(numbers))).decode(),
    }


def test_digests_of_files_and_objects() -> None:
    for vector in stored("file_digests.json")["bytes"]:
        data = bytes.fromhex(vector["hex"])
        assert vector["digest"] == f"xxh3:{xxhash.xxh3_128(data).digest().hex()}"
        assert vector["footer"] == f"xxh3:{xxhash.xxh3_64(data).digest().hex()}"
    for vector in stored("object_digests.json")["objects"]:
        said = json.loads(vector["text"]).get("digest")
        blank = vector["text"].replace(said or "-", "0" * 64)
        is_intact = said is None or (vector["text"].count(said) == 1 and hashlib.sha256(blank.encode()).hexdigest() == said)
        assert is_intact is vector["intact"], vector


def test_partitions_by_the_second_reader() -> None:
    cut = 0
    for vector in stored("partitions.json")["rows"]:
        fields = [{**part, "column": at} for at, part in enumerate(vector["fields"])]
        values = {at: from_json(part["value"], part["type"]) for at, part in enumerate(vector["fields"])}
        kinds = {at: part["type"] for at, part in enumerate(vector["fields"])}
        found = reader.partition_of({"mark": vector["mark"], "fields": fields}, kinds, values)
        assert found == vector["partition"], vector
        if "cut_of" in vector:
            cut += 1
            assert f"~{hashlib.sha256(bytes.fromhex(vector['cut_of'])).hexdigest()[:32]}" in found
    assert cut >= 5


def test_no_value_is_outside_of_its_bounds() -> None:
    compared = 0
    for vector in stored("bounds.json")["columns"]:
        kind, (lower, upper, nulls) = vector["type"], vector["bounds"]
        values = [from_json(value, kind) for value in vector["values"]]
        assert sum(value is None for value in values) == nulls
        for value in values:
            if value is None or reader.is_nan(value):
                continue
            low, high = (None if bound is None else ordered(bound, kind) for bound in (lower, upper))
            compared += low is not None
            assert low is None or low <= ordered(value, kind)
            assert high is None or ordered(value, kind) <= high
    assert compared > 30


def ordered(value: Any, kind: str) -> Any:
    if kind == "binary" and isinstance(value, str):
        return bytes.fromhex(value)
    if kind.startswith("decimal"):
        return Decimal(value)
    return value.encode() if isinstance(value, str) else value


def test_comparison_keys_by_the_second_reader() -> None:
    for vector in stored("names.json")["names"]:
        assert reader.name_key(vector["name"]) == vector["comparison_key"]


def test_the_winner_by_ordering_columns() -> None:
    """The merge of docs/spec/reading.md, row by row."""
    for vector in stored("ordering.json")["keys"]:
        kept: list[Any] | None = None
        winner = None
        for number, row in enumerate(vector["rows"]):
            values = [from_json(value, kind) for value, kind in zip(row["values"], vector["types"], strict=True)]
            rank = None if None in values else [reader._sorting(value) for value in values]
            if rank is None or kept is None or rank >= kept:
                kept, winner = rank, number
        assert winner == vector["winner"], vector


def test_values_have_the_form_that_the_readme_says() -> None:
    decimals = [
        (kind, value)
        for vector in stored("hash.json")["keys"]
        for kind, value in zip(vector["types"], vector["values"], strict=True)
        if kind.startswith("decimal")
    ]
    assert len(decimals) > 20
    for kind, value in decimals:
        scale = reader.decimal_of(kind)[1]
        assert len(value.partition(".")[2]) == scale, "a decimal has all digits of its scale"
