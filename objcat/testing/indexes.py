"""The conformance suite of indexes. Import everything, and define a fixture `subject`:

    from objcat.testing.indexes import *
    from objcat.testing.indexes import IndexSubject

    @pytest.fixture
    def subject(tmp_path) -> IndexSubject:
        return IndexSubject("sqlite", options={"path": str(tmp_path / "keys.db")})

The index must be installed, since it is found by its entry point. `objcat.write.index_plugin` has the contract. What the index holds at the
beginning of a test does not matter.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest

from fileio.env import SystemEnv, default_env
from objcat.lake.lake import connect
from objcat.metadata.properties import INDEX_PLUGIN
from objcat.metadata.table_spec import BloomIndex, SimpleIndex
from objcat.table.table import Table
from objcat.write.index_plugin import KeyFile, NamedIndex, open_index

SEEDS = range(4)
STEPS, WRITES = 60, 16
THREADS = 6
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("part", pa.string(), nullable=False), ("v", pa.int64())])
Digests = npt.NDArray[np.uint64]
Row = tuple[int, str]


@dataclass(frozen=True, slots=True)
class IndexSubject:
    """An index to test.

    Args:
        name: of its entry point.
        options: what a table would say by properties `index_plugin.<option>`.
    """

    name: str
    options: Mapping[str, str] = field(default_factory=dict)

    def properties(self) -> dict[str, str]:
        """The properties of a table that has the index."""
        return {INDEX_PLUGIN: self.name, **{f"{INDEX_PLUGIN}.{option}": value for option, value in self.options.items()}}

    def open(self) -> NamedIndex:
        """The index, opened as by a process that starts."""
        found = open_index(self.properties())
        assert found is not None
        return found


def fresh(count: int) -> list[KeyFile]:
    """Files that no index has met: base files, and rows of one log file."""
    name = SystemEnv().new_id()
    files = [KeyFile(f"table/data/{name}/{number} \u00fc=%2F.parquet") for number in range(count - count // 2)]
    return files + [KeyFile(f"table/data/{name}/log", 10 * number, 10 * number + 7) for number in range(count // 2)]


def some_digests(rng: random.Random, count: int, *, below: int = 2**64) -> Digests:
    """Digests as a file has them: ascending, each once, from the whole range."""
    return np.array(sorted({rng.randrange(below) for _ in range(count)}), np.uint64)


def found_by(index: NamedIndex, digests: Digests, files: Sequence[KeyFile]) -> tuple[set[tuple[int, KeyFile]], set[KeyFile]]:
    """What an index finds in files that it holds, by the number of the key, and the files that it does not know."""
    found = index.find(digests, files)
    unknown = set(found.unknown)
    pairs = {(key, files[number]) for key, number in zip(found.keys.tolist(), found.files.tolist(), strict=True)}
    return {(key, file) for key, file in pairs if file not in unknown}, unknown


def random_table(subject: IndexSubject, seed: int) -> Table:
    """An empty table with small files."""
    lake = connect(f"memory://{default_env().new_id()}")
    return lake.create_table(
        "t",
        SCHEMA,
        key=["id"],
        partition_by=["part"] if seed % 2 else [],
        key_scope="partition" if seed % 2 else "table",
        index=SimpleIndex() if seed % 4 < 2 else BloomIndex(),
        properties={**subject.properties(), "target_file_bytes": "2048", "auto_clean": "false"},
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_answers_are_those_of_a_model(subject: IndexSubject, seed: int) -> None:
    rng = random.Random(seed)
    files, model = fresh(8), dict[KeyFile, Digests]()
    many = some_digests(rng, 400)
    for _ in range(STEPS):
        file, act = rng.choice(files), rng.random()
        if act < 0.4:
            own = model.get(file)
            if own is None:
                # A log file loses all its rows at once, and a file never has other keys.
                own = np.unique(np.array(rng.sample(many.tolist(), rng.choice([0, 1, 30, 200])), np.uint64))
            subject.open().add(file, own)
            model[file] = own
        elif act < 0.5:
            subject.open().remove([file.path, "table/data/never/there"])
            for other in [other for other in model if other.path == file.path]:
                del model[other]
            files = [fresh(1)[0] if one == file and one.end == 0 else one for one in files]
        asked = rng.sample(files, rng.randint(0, len(files)))
        keys = np.array([*rng.sample(many.tolist(), rng.choice([0, 1, 50])), 0, 2**64 - 1, int(many[0]), int(many[0])], np.uint64)
        found, unknown = found_by(subject.open(), keys, asked)
        assert unknown == {one for one in asked if one not in model}
        expected = {(at, one) for one in asked if one in model for at, key in enumerate(keys.tolist()) if key in set(model[one].tolist())}
        assert found == expected


def test_the_least_and_the_greatest_digest_are_found(subject: IndexSubject) -> None:
    (file,) = fresh(1)
    ends = np.array([0, 1, 2**63 - 1, 2**63, 2**64 - 1], np.uint64)
    subject.open().add(file, ends)
    found, unknown = found_by(subject.open(), ends[::-1].copy(), [file])
    assert (found, unknown) == ({(number, file) for number in range(5)}, set())


def test_a_file_without_keys_is_known(subject: IndexSubject) -> None:
    (file,) = fresh(1)
    subject.open().add(file, np.array([], np.uint64))
    assert found_by(subject.open(), np.array([1], np.uint64), [file]) == (set(), set())


def test_many_keys_and_many_files(subject: IndexSubject) -> None:
    rng = random.Random(0)
    files, index = fresh(300), subject.open()
    parts = [some_digests(rng, 300) for _ in files]
    for file, own in zip(files, parts, strict=True):
        index.add(file, own)
    asked = np.concatenate(parts)
    found, unknown = found_by(index, asked, files)
    assert unknown == set()
    assert {(int(asked[key]), file) for key, file in found} == {
        (key, file) for file, own in zip(files, parts, strict=True) for key in own.tolist()
    }


def test_many_tell_it_at_once(subject: IndexSubject) -> None:
    rng = random.Random(1)
    told = [(file, some_digests(rng, 100)) for file in fresh(10)]

    def tell(seed: int) -> None:
        index, own = subject.open(), list(told)
        random.Random(seed).shuffle(own)
        for file, digests in own:
            index.add(file, digests)
            # A file that was told is answered whole.
            found, unknown = found_by(index, digests, [one for one, _ in told])
            assert file not in unknown
            assert {key for key, one in found if one == file} == set(range(len(digests)))

    with ThreadPoolExecutor(THREADS) as threads:
        list(threads.map(tell, range(THREADS)))
    for file, digests in told:
        assert found_by(subject.open(), digests, [file]) == ({(number, file) for number in range(len(digests))}, set())


def test_a_removal_beside_questions_is_never_a_part_of_a_file(subject: IndexSubject) -> None:
    rng = random.Random(2)
    told = [(file, some_digests(rng, 500)) for file in fresh(20)]
    for file, digests in told:
        subject.open().add(file, digests)

    def ask(_: int) -> None:
        index = subject.open()
        for file, digests in told:
            found, unknown = found_by(index, digests, [file])
            assert len(found) == len(digests) or unknown == {file}, "a part of a file was answered as if it were whole"

    def remove(_: int) -> None:
        index = subject.open()
        for file, _digests in reversed(told):
            index.remove([file.path])

    with ThreadPoolExecutor(THREADS) as threads:
        asking = [threads.submit(ask, number) for number in range(THREADS - 1)]
        threads.submit(remove, 0).result()
        for one in asking:
            one.result()


@pytest.mark.parametrize("seed", SEEDS)
def test_writes_keep_each_key_once(subject: IndexSubject, seed: int) -> None:
    rng = random.Random(seed)
    table = random_table(subject, seed)
    model: dict[Row, int] = {}
    by_part = seed % 2 == 1
    for number in range(WRITES):
        ids = rng.sample(range(200), rng.randint(1, 40))
        keys: list[Row] = [(one, rng.choice("xy") if by_part else "x") for one in ids]
        rows = [{"id": one, "part": part, "v": number} for one, part in keys]
        writer = rng.random()
        if writer < 0.2:
            # Another writer, which has no index.
            table.set_properties(unset=[INDEX_PLUGIN])
            table.upsert(rows)
            table.set_properties(subject.properties())
        elif writer < 0.3:
            table.delete([{"id": one, **({"part": part} if by_part else {})} for one, part in keys])
        else:
            table.upsert(rows)
        for key in keys:
            if 0.2 <= writer < 0.3:
                model.pop(key, None)
            else:
                model[key] = number
        if rng.random() < 0.15:
            table.maintenance.compact()
        if rng.random() < 0.1:
            table.maintenance.clean(keep_slots=1)
        found = sorted((row["id"], row["part"], row["v"]) for row in table.scan().to_arrow().to_pylist())
        assert found == sorted((*key, v) for key, v in model.items()), f"after write {number}"


def test_what_is_cleaned_is_forgotten(subject: IndexSubject) -> None:
    table = random_table(subject, 0)
    table.insert([{"id": number, "part": "x", "v": 0} for number in range(50)])
    table.upsert([{"id": number, "part": "x", "v": 1} for number in range(50)])
    spec, index = table._context.snapshot.spec, subject.open()
    groups = table.snapshot.file_groups(table._context.manifests)
    old = [KeyFile(f"{spec.table}/{group.base.path}") for group in groups if group.base is not None]
    assert old and found_by(index, np.array([1], np.uint64), old)[1] == set(), "the write taught the index nothing"
    table.maintenance.compact()
    table.maintenance.clean(keep_slots=1)
    assert found_by(index, np.array([1], np.uint64), old)[1] == set(old)


__all__ = [
    "IndexSubject",
    "test_a_file_without_keys_is_known",
    "test_a_removal_beside_questions_is_never_a_part_of_a_file",
    "test_answers_are_those_of_a_model",
    "test_many_keys_and_many_files",
    "test_many_tell_it_at_once",
    "test_the_least_and_the_greatest_digest_are_found",
    "test_what_is_cleaned_is_forgotten",
    "test_writes_keep_each_key_once",
]
