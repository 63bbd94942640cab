"""Streams: what is written is what is read, whatever the sizes; objects appear whole or not at all; memory and requests are bounded."""

from __future__ import annotations

import array
import io
import random
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fileio.contract import (
    Buffer,
    Create,
    ObjectMeta,
    OutcomeUnknown,
    Overwrite,
    PreconditionFailed,
    PutMode,
    Update,
    Upload,
    Version,
    Written,
)
from fileio.env import SystemEnv
from fileio.errors import FileIOError, InvalidConfig, NotFound, NotWritten, PermissionDenied, Unavailable, Unsupported, UploadLost
from fileio.memory import MEMORY_CAPABILITIES, MemoryBackend
from fileio.read_stream import WINDOW_BYTES, ReadStream
from fileio.store import FileIO
from fileio.stream_settings import StreamSettings
from fileio.testing import Fault, FaultyBackend, Rule
from fileio.testing.faults import Kind
from fileio.upload_parts import part_size
from fileio.write_outcomes import RetryPolicy
from fileio.write_stream import WriteStream

KEY = "data/object"
POLICY = RetryPolicy(attempts_max=3, backoff_ms_first=0, backoff_ms_max=0)
SMALL = StreamSettings(part_bytes=10, parallelism=3, prefetch=2)
LARGE_BYTES = 1_000_000


def _bytes(length: int) -> bytes:
    return random.Random(length).randbytes(length)


def _store(backend: MemoryBackend | None = None, *rules: Rule) -> tuple[FileIO, MemoryBackend]:
    memory = backend or MemoryBackend(keep_history=True)
    return FileIO(FaultyBackend(memory, rules) if rules else memory, policy=POLICY), memory


def _kinds(store: FileIO) -> Mapping[str, int]:
    return store.metrics.snapshot().requests


# ---- writing: bytes and requests ---------------------------------------------------------------------------------


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.integers(0, 45), max_size=12),
    st.integers(1, 20),
    st.integers(1, 4),
    st.sampled_from([1, 4, 7]),
    st.booleans(),
    st.booleans(),
)
def test_whatever_the_sizes_of_the_writes_the_object_is_their_concatenation(
    tmp_path_factory: pytest.TempPathFactory,
    lengths: list[int],
    part_bytes: int,
    parallelism: int,
    multiple: int,
    parallel_parts: bool,
    spilled: bool,
) -> None:
    spill = str(tmp_path_factory.getbasetemp()) if spilled else None
    backend = MemoryBackend(capabilities=replace(MEMORY_CAPABILITIES, part_bytes_multiple=multiple, parallel_parts=parallel_parts))
    store, _ = _store(backend)
    pieces = [_bytes(length) for length in lengths]
    with store.open_write(KEY, settings=StreamSettings(part_bytes=part_bytes, parallelism=parallelism, spill_directory=spill)) as stream:
        for index, piece in enumerate(pieces):
            assert stream.tell() == sum(lengths[:index])
            assert stream.write((bytes, bytearray, memoryview)[index % 3](piece)) == len(piece)
            stream.flush()
    assert store.read(KEY) == b"".join(pieces)
    assert backend.uploads_in_progress == []


@pytest.mark.parametrize("length", [0, 1, 9, 10])
def test_an_object_of_at_most_one_part_is_one_put(length: int) -> None:
    store, _ = _store()
    with store.open_write(KEY, Create(), settings=SMALL) as stream:
        stream.write(_bytes(length))
    assert _kinds(store) == {"put_create": 1}
    assert store.read(KEY) == _bytes(length)


def test_a_larger_object_is_one_upload_in_parts() -> None:
    store, _ = _store()
    with store.open_write(KEY, metadata={"origin": "test"}, settings=SMALL) as stream:
        stream.write(_bytes(31))
    assert _kinds(store) == {"upload_start": 1, "upload_part": 4, "upload_complete": 1}
    assert store.head(KEY).metadata["origin"] == "test"


def test_a_buffer_that_is_changed_after_the_write_does_not_change_the_object() -> None:
    store, _ = _store()
    buffer = bytearray(_bytes(100))
    with store.open_write(KEY, settings=SMALL) as stream:
        stream.write(buffer)
        buffer[:] = bytes(100)
    assert store.read(KEY) == _bytes(100)


def test_writes_of_exactly_a_part_between_others_keep_their_order() -> None:
    backend = _LimitedBackend(replace(MEMORY_CAPABILITIES, parts_max=30))  # the part size doubles every two parts: 10, 10, 20, 20, 40
    store, _ = _store(backend)
    pieces = [_bytes(length) for length in (10, 10, 20, 7, 20, 13, 40, 40, 10)]
    with store.open_write(KEY, settings=SMALL) as stream:
        for piece in pieces:
            stream.write(piece)
    assert store.read(KEY) == b"".join(pieces)
    assert [backend.part_sizes[n] for n in sorted(backend.part_sizes)] == [10, 10, 20, 20, 40, 40, 30]


def test_any_buffer_can_be_written() -> None:
    store, _ = _store()
    numbers = array.array("i", range(100))
    scattered = memoryview(_bytes(60))[::2]
    with store.open_write(KEY, settings=SMALL) as stream:
        assert stream.write(numbers) == 400
        assert stream.write(scattered) == 30
    assert store.read(KEY) == numbers.tobytes() + scattered.tobytes()


def test_a_single_put_that_would_be_too_large_for_the_store_is_an_upload() -> None:
    store, _ = _store(MemoryBackend(capabilities=replace(MEMORY_CAPABILITIES, put_bytes_max=5)))
    with store.open_write(KEY, settings=SMALL) as stream:
        stream.write(_bytes(8))
    assert _kinds(store) == {"upload_start": 1, "upload_part": 1, "upload_complete": 1}
    assert store.read(KEY) == _bytes(8)


# ---- writing: the part sizes -------------------------------------------------------------------------------------


def test_part_sizes_reach_five_tebibytes_and_stay_small_for_small_objects() -> None:
    s3 = replace(MEMORY_CAPABILITIES, part_bytes_min=5 << 20, part_bytes_max=5 << 30, parts_max=10_000)
    for first_mib in (1, 5, 8, 64):
        sizes = [part_size(n, first_bytes=first_mib << 20, capabilities=s3) for n in range(1, 10_001)]
        assert sum(sizes) >= 5 << 40
        assert sizes == sorted(sizes)
        assert sizes[0] == max(5, first_mib) << 20
        assert sizes[-1] <= 5 << 30
        reached = 0
        for size in sizes:
            assert size <= max(first_mib, 5) * (1 << 20) + reached / 400, "a part is a small fraction of what was written before it"
            reached += size


@given(st.integers(1, 60), st.integers(1, 50), st.integers(1, 8), st.integers(1, 40), st.integers(1, 2000))
def test_part_sizes_respect_every_bound(number: int, first: int, multiple: int, least: int, most: int) -> None:
    most = max(most, least, multiple)
    least = min(least, most // multiple * multiple)
    limits = replace(MEMORY_CAPABILITIES, part_bytes_min=least, part_bytes_max=most, part_bytes_multiple=multiple)
    size = part_size(number, first_bytes=first, capabilities=limits)
    assert limits.part_bytes_min <= size <= most
    assert size % multiple == 0


def test_parts_grow_so_that_the_store_s_limit_is_not_met_and_beyond_it_the_error_says_so() -> None:
    limits = replace(MEMORY_CAPABILITIES, parts_max=4, part_bytes_max=1000)
    backend = _LimitedBackend(limits)
    store, _ = _store(backend)
    with store.open_write(KEY, settings=SMALL) as stream:
        for _ in range(150):
            stream.write(b"x")
    assert backend.part_sizes == {1: 10, 2: 20, 3: 40, 4: 80}
    assert store.read(KEY) == b"x" * 150
    with pytest.raises(Unsupported, match="part_bytes"), store.open_write("data/longer", settings=SMALL) as stream:
        stream.write(bytes(151))
    assert not store.exists("data/longer")
    assert backend.uploads_in_progress == []


class _LimitedBackend(MemoryBackend):
    """Remembers the sizes of parts, how many were sent at once, and lets a part through only when `gate` opens."""

    def __init__(self, capabilities: object, gate: threading.Barrier | None = None) -> None:
        super().__init__(capabilities=capabilities)  # type: ignore[arg-type]
        self.gate = gate
        self.part_sizes: dict[int, int] = {}
        self.order: list[int] = []
        self.at_once_max = 0
        self._at_once = 0
        self._counting = threading.Lock()

    def start_upload(self, key: str, mode: PutMode, metadata: Mapping[str, str]) -> Upload:
        inner, backend = super().start_upload(key, mode, metadata), self

        class Counted(Upload):
            def put_part(self, number: int, data: Buffer) -> None:
                with backend._counting:
                    backend._at_once += 1
                    backend.at_once_max = max(backend.at_once_max, backend._at_once)
                    backend.part_sizes[number] = len(data)
                    backend.order.append(number)
                if backend.gate is not None:
                    backend.gate.wait(20)
                inner.put_part(number, data)
                with backend._counting:
                    backend._at_once -= 1

            def complete(self) -> Written | PreconditionFailed | OutcomeUnknown:
                return inner.complete()

            def abort(self) -> None:
                assert backend._at_once == 0, "an upload is removed while a part of it is under way"
                inner.abort()

        return Counted()


def test_as_many_parts_as_allowed_are_sent_at_once() -> None:
    backend = _LimitedBackend(MEMORY_CAPABILITIES, threading.Barrier(3))  # nobody passes before three are there
    store, _ = _store(backend)
    with store.open_write(KEY, settings=SMALL) as stream:
        stream.write(_bytes(90))
    assert backend.at_once_max == 3
    assert store.read(KEY) == _bytes(90)


def test_where_parts_go_one_by_one_the_caller_still_writes_while_one_is_sent() -> None:
    backend = _LimitedBackend(replace(MEMORY_CAPABILITIES, parallel_parts=False), threading.Barrier(2))
    store, _ = _store(backend)
    with store.open_write(KEY, settings=SMALL) as stream:
        stream.write(_bytes(20)[:19])  # the first part waits at the gate: this returns although nobody has opened it
        opened = threading.Thread(target=lambda: [backend.gate.wait(20) for _ in range(2) if backend.gate])
        opened.start()
        stream.write(_bytes(20)[19:])
    opened.join()
    assert backend.order == [1, 2]
    assert backend.at_once_max == 1
    assert store.read(KEY) == _bytes(20)


# ---- writing: the end --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [5, 35])
@pytest.mark.parametrize("fault", [Fault.AFTER, Fault.BEFORE, Fault.THROTTLE])
def test_a_lost_response_at_the_end_is_settled(length: int, fault: Fault) -> None:
    kind: Kind = "put" if length <= SMALL.part_bytes else "upload_complete"
    store, memory = _store(None, Rule(fault=fault, kinds=frozenset({kind})))
    stream = store.open_write(KEY, Create(), settings=SMALL)
    stream.write(_bytes(length))
    assert isinstance(stream.finish(), Written)
    stream.close()
    assert [state.data for state in memory.history(KEY)] == [_bytes(length)]
    assert memory.uploads_in_progress == []


@pytest.mark.parametrize("length", [5, 35])
@pytest.mark.parametrize("mode", [Create(), Update(Version("1"))])
def test_a_competitor_who_came_first_is_a_conflict_and_close_says_so(length: int, mode: PutMode) -> None:
    store, memory = _store()
    store.put(KEY, b"former")
    version = store.head(KEY).version
    stream = store.open_write(KEY, Update(version) if isinstance(mode, Update) else mode, settings=SMALL)
    stream.write(_bytes(length))
    if isinstance(mode, Update):
        store.put(KEY, b"theirs")
    there = store.read(KEY)
    with pytest.raises(NotWritten, match=KEY) as caught:
        stream.close()
    assert isinstance(caught.value.outcome, PreconditionFailed)
    assert isinstance(stream.finish(), PreconditionFailed)
    assert stream.closed
    assert store.read(KEY) == there
    assert memory.uploads_in_progress == []


@pytest.mark.parametrize("length", [5, 35])
def test_when_nobody_can_tell_close_says_that(length: int) -> None:
    kinds: list[Kind] = ["put" if length <= SMALL.part_bytes else "upload_complete", "head"]
    store, _ = _store(None, *(Rule(fault=Fault.BEFORE, kinds=frozenset({kind}), times=99) for kind in kinds))
    stream = store.open_write(KEY, Create(), settings=SMALL)
    stream.write(_bytes(length))
    assert isinstance(stream.finish(), OutcomeUnknown)
    with pytest.raises(NotWritten) as caught, store.open_write(KEY, Create(), settings=SMALL) as again:
        again.write(_bytes(length))
    assert isinstance(caught.value.outcome, OutcomeUnknown)


def test_finish_closes_and_repeats_its_answer() -> None:
    store, _ = _store()
    stream = store.open_write(KEY, settings=SMALL)
    stream.write(b"abc")
    assert stream.finish() == stream.finish()
    assert stream.closed
    stream.close()
    with pytest.raises(ValueError, match="closed"):
        stream.write(b"d")
    assert _kinds(store) == {"put": 1}


@pytest.mark.parametrize("length", [0, 5, 35])
def test_abort_leaves_nothing(length: int) -> None:
    store, memory = _store()
    stream = store.open_write(KEY, settings=SMALL)
    stream.write(_bytes(length))
    stream.abort()
    stream.abort()
    stream.close()
    assert stream.closed
    assert not store.exists(KEY)
    assert memory.uploads_in_progress == []
    with pytest.raises(ValueError, match="closed"):
        stream.finish()


def _fail_within(stream: WriteStream, length: int) -> None:
    with stream:
        stream.write(_bytes(length))
        raise ZeroDivisionError


@pytest.mark.parametrize("length", [5, 35])
def test_leaving_the_block_by_an_exception_aborts(length: int) -> None:
    store, memory = _store()
    with pytest.raises(ZeroDivisionError):
        _fail_within(store.open_write(KEY, settings=SMALL), length)
    assert not store.exists(KEY)
    assert memory.uploads_in_progress == []


def _fail_before_closing(stream: WriteStream, length: int) -> None:
    try:
        stream.write(_bytes(length))
        raise ZeroDivisionError
    finally:
        stream.close()


def _fail_within_wrapper(stream: WriteStream, length: int) -> None:
    with io.BufferedWriter(stream, buffer_size=7) as writer:
        writer.write(_bytes(length))
        raise ZeroDivisionError


@pytest.mark.parametrize("fail", [_fail_before_closing, _fail_within_wrapper])
@pytest.mark.parametrize("length", [5, 35])
def test_closing_on_the_way_out_of_an_exception_aborts(fail: Callable[[WriteStream, int], None], length: int) -> None:
    store, memory = _store()
    with pytest.raises(ZeroDivisionError), pytest.warns(RuntimeWarning, match=KEY):
        fail(store.open_write(KEY, settings=SMALL), length)
    assert not store.exists(KEY)
    assert memory.uploads_in_progress == []


def test_an_exception_that_was_there_before_the_stream_is_no_reason_to_abort() -> None:
    store, _ = _store()
    try:
        raise ZeroDivisionError
    except ZeroDivisionError:
        stream = store.open_write(KEY, settings=SMALL)
        stream.write(b"whole")
        stream.close()
        finished = store.open_write("data/other", settings=SMALL)
        with pytest.raises(NotFound):
            store.read("data/missing")
        finished.close()
    assert store.read(KEY) == b"whole" and store.exists("data/other")


def test_when_not_even_the_abort_gets_through_the_first_error_stays_and_a_note_tells() -> None:
    store, memory = _store(None, Rule(fault=Fault.BEFORE, kinds=frozenset({"upload_abort"}), times=3))
    stream = store.open_write(KEY, settings=SMALL)
    with pytest.raises(ZeroDivisionError) as caught:
        _fail_within(stream, 35)
    assert "could not be removed" in caught.value.__notes__[0]
    assert memory.uploads_in_progress == [KEY]
    stream.abort()
    assert memory.uploads_in_progress == []


def test_a_dropped_stream_writes_nothing() -> None:
    store, memory = _store()
    stream = store.open_write(KEY, settings=SMALL)
    stream.write(_bytes(35))
    with pytest.warns(ResourceWarning, match=KEY):
        del stream
    assert not store.exists(KEY)
    assert memory.uploads_in_progress == []


def test_a_part_that_fails_now_and_then_is_sent_again() -> None:
    parts: frozenset[Kind] = frozenset({"upload_part"})
    store, _ = _store(None, Rule(fault=Fault.BEFORE, kinds=parts, nth=2), Rule(fault=Fault.AFTER, kinds=parts, nth=4))
    with store.open_write(KEY, settings=SMALL) as stream:
        stream.write(_bytes(95))
    assert store.read(KEY) == _bytes(95)


@pytest.mark.parametrize("nth", [1, 2, 4])
def test_a_part_that_keeps_failing_surfaces_and_leaves_nothing(nth: int) -> None:
    backend = _FailingParts(nth)
    store, _ = _store(backend)
    stream = store.open_write(KEY, settings=replace(SMALL, parallelism=2))
    with pytest.raises(PermissionDenied):
        _write_bytes_one_by_one(stream, 40)
    assert stream.closed
    assert not store.exists(KEY)
    assert backend.uploads_in_progress == []
    with pytest.raises(PermissionDenied):
        stream.write(b"more")
    with pytest.raises(PermissionDenied):
        stream.finish()
    stream.close()
    stream.abort()
    assert not store.exists(KEY)


def _write_bytes_one_by_one(stream: WriteStream, count: int) -> None:
    for _ in range(count):
        stream.write(b"x")
    stream.finish()


class _FailingParts(MemoryBackend):
    def __init__(self, number: int) -> None:
        super().__init__()
        self._failing = number

    def start_upload(self, key: str, mode: PutMode, metadata: Mapping[str, str]) -> Upload:
        inner, failing = super().start_upload(key, mode, metadata), self._failing

        class Failing(Upload):
            def put_part(self, number: int, data: Buffer) -> None:
                if number == failing:
                    raise PermissionDenied("parts are not allowed any more")
                inner.put_part(number, data)

            def complete(self) -> Written | PreconditionFailed | OutcomeUnknown:
                return inner.complete()

            def abort(self) -> None:
                inner.abort()

        return Failing()


@pytest.mark.parametrize("mode", [Overwrite(), Create()])
def test_an_upload_that_somebody_removed_is_an_error(mode: PutMode) -> None:
    store, memory = _store()
    stream = store.open_write(KEY, mode, settings=SMALL)
    stream.write(_bytes(30))
    while memory.uploads_in_progress:
        for upload in list(memory._uploads.values()):
            upload.abort()
    with pytest.raises(UploadLost, match=KEY):
        stream.close()
    assert not store.exists(KEY)


def test_where_completion_ignores_conditions_small_objects_are_right_and_large_ones_refused() -> None:
    store, memory = _store(MemoryBackend(capabilities=replace(MEMORY_CAPABILITIES, conditional_complete=False)))
    with store.open_write(KEY, Create(), settings=SMALL) as stream:
        stream.write(_bytes(10))
    with pytest.raises(NotWritten), store.open_write(KEY, Create(), settings=SMALL) as stream:
        stream.write(_bytes(10))
    with pytest.raises(Unsupported, match="part_bytes"), store.open_write("data/large", Create(), settings=SMALL) as stream:
        stream.write(_bytes(11))
    assert not store.exists("data/large")
    assert memory.uploads_in_progress == []
    with store.open_write("data/large", settings=SMALL) as stream:
        stream.write(_bytes(11))
    assert store.read("data/large") == _bytes(11)


def test_spilled_parts_leave_no_file(tmp_path: Path) -> None:
    store, _ = _store()
    with store.open_write(KEY, settings=replace(SMALL, spill_directory=str(tmp_path))) as stream:
        stream.write(_bytes(99))
        assert list(tmp_path.iterdir()) == []
    assert store.read(KEY) == _bytes(99)


@pytest.mark.parametrize("change", [{"part_bytes": 0}, {"parallelism": 0}, {"prefetch": -1}])
def test_settings_out_of_bounds_are_refused(change: dict[str, int]) -> None:
    with pytest.raises(InvalidConfig, match=next(iter(change))):
        StreamSettings(**change)  # type: ignore[arg-type]


# ---- threads and memory ------------------------------------------------------------------------------------------


@pytest.mark.timeout(60)
def test_tasks_that_fill_every_thread_may_write_and_read_streams() -> None:
    store = FileIO(MemoryBackend(), env=SystemEnv(parallelism=2, io_parallelism=1), policy=POLICY)

    def task(number: int) -> bytes:
        key = f"data/{number}"
        with store.open_write(key, settings=SMALL) as stream:
            stream.write(_bytes(200))
        ranges = store.get_ranges(key, [(start, start + 5) for start in range(0, 200, 10)], gap_bytes=0)
        assert b"".join(ranges) == b"".join(_bytes(200)[start : start + 5] for start in range(0, 200, 10))
        nested = list(store.env.map(lambda _: store.open_read(key, settings=SMALL).read(), range(4)))
        assert nested == [_bytes(200)] * 4
        return store.open_read(key, settings=SMALL).read()

    assert list(store.env.map(task, range(8))) == [_bytes(200)] * 8


_MEASURE = """
import resource, sys
from fileio.contract import ObjectMeta, GetResult, Version, Written
from fileio.memory import MemoryBackend
from fileio.store import FileIO
from fileio.stream_settings import StreamSettings

PART, PARTS = 8 << 20, 40

class Null(MemoryBackend):
    def start_upload(self, key, mode, metadata):
        upload = super().start_upload(key, mode, metadata)
        upload.put_part = lambda number, data: None
        upload.complete = lambda: Written(Version("1"))
        return upload

    def head(self, key):
        return ObjectMeta(key, PART * PARTS, Version("1"), 0)

    def get(self, key, byte_range, if_none_match):
        return GetResult(self.head(key), bytes(byte_range.end - byte_range.start), byte_range.start)

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

store = FileIO(Null())
settings = StreamSettings(part_bytes=PART, parallelism=2, prefetch=2)
chunk = b"x" * (1 << 20)
store.env.submit_io(int).result()
before = peak()
with store.open_write("key", settings=settings) as stream:
    for _ in range(PART * PARTS // len(chunk)):
        stream.write(chunk)
written = peak()
assert written - before < PART * 3 + (6 << 20), f"writing took {written - before} bytes"
buffer = bytearray(1 << 20)
with store.open_read("key", settings=settings) as stream:
    total = 0
    while n := stream.readinto(buffer):
        total += n
assert total == PART * PARTS
assert peak() - before < PART * 4 + (8 << 20), f"reading took {peak() - before} bytes"
"""


def test_memory_is_bounded_by_the_parts_that_are_under_way() -> None:
    subprocess.run([sys.executable, "-c", _MEASURE], check=True, timeout=60, cwd=Path(__file__).parents[2])


# ---- reading -----------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=40)
@given(
    st.integers(0, 400_000),
    st.sampled_from([7_000, 64 * 1024, 100_000]),
    st.integers(0, 3),
    st.lists(st.tuples(st.sampled_from(["read", "readinto", "read1", "set", "cur", "end"]), st.integers(-1, 200_000)), max_size=15),
)
def test_a_reader_behaves_as_a_file_in_memory(size: int, part_bytes: int, prefetch: int, steps: list[tuple[str, int]]) -> None:
    store, _ = _store(MemoryBackend())
    store.put(KEY, _bytes(size))
    model = io.BytesIO(_bytes(size))
    with store.open_read(KEY, settings=StreamSettings(part_bytes=part_bytes, prefetch=prefetch)) as stream:
        for step, number in steps:
            match step:
                case "read":
                    assert stream.read(number) == model.read(number)
                case "readinto":
                    got, want = bytearray(max(0, number)), bytearray(max(0, number))
                    assert stream.readinto(got) == model.readinto(want)
                    assert got == want
                case "read1":
                    got = bytearray(stream.read1(number))
                    assert got == model.read(len(got))
                    assert got or number == 0 or model.tell() >= size
                case "set":
                    assert stream.seek(max(0, number)) == model.seek(max(0, number))
                case "cur":
                    assert stream.seek(number if model.tell() else 0, io.SEEK_CUR) == model.seek(number if model.tell() else 0, io.SEEK_CUR)
                case "end":
                    offset = -min(size, max(0, number))
                    assert stream.seek(offset, io.SEEK_END) == model.seek(offset, io.SEEK_END)
            assert stream.tell() == model.tell()


def _large(settings: StreamSettings) -> tuple[FileIO, ObjectMeta, StreamSettings]:
    store, _ = _store(MemoryBackend())
    store.put(KEY, _bytes(LARGE_BYTES))
    return store, store.head(KEY), settings


def test_random_small_reads_fetch_little_more_than_they_need() -> None:
    store, meta, settings_ = _large(StreamSettings(part_bytes=200_000))
    before = store.metrics.snapshot()
    chosen = random.Random(1)
    with store.open_read(KEY, meta=meta, settings=settings_) as stream:
        for _ in range(20):
            place = chosen.randrange(0, LARGE_BYTES - 200_000)
            stream.seek(place)
            assert stream.read(100) == _bytes(LARGE_BYTES)[place : place + 100]
    spent = store.metrics.snapshot() - before
    assert spent.request_count <= 20
    assert spent.bytes_read <= 20 * WINDOW_BYTES


def test_a_read_of_one_range_fetches_that_range_only() -> None:
    store, meta, settings_ = _large(StreamSettings(part_bytes=200_000))
    before = store.metrics.snapshot()
    with store.open_read(KEY, meta=meta, settings=settings_) as stream:
        stream.seek(300_000)
        assert stream.read(150_000) == _bytes(LARGE_BYTES)[300_000:450_000]
    spent = store.metrics.snapshot() - before
    assert (spent.request_count, spent.bytes_read) == (1, 150_000)


def test_a_footer_is_one_request() -> None:
    store, meta, settings_ = _large(StreamSettings())
    before = store.metrics.snapshot()
    with store.open_read(KEY, meta=meta, settings=settings_) as stream:
        stream.seek(-8, io.SEEK_END)
        assert stream.read(8) == _bytes(LARGE_BYTES)[-8:]
        stream.seek(-30_000, io.SEEK_END)
        assert stream.read() == _bytes(LARGE_BYTES)[-30_000:]
    spent = store.metrics.snapshot() - before
    assert (spent.request_count, spent.bytes_read) == (1, WINDOW_BYTES)


def test_sequential_reads_fetch_each_byte_once_in_few_requests() -> None:
    store, meta, settings_ = _large(StreamSettings(part_bytes=200_000, prefetch=3))
    before = store.metrics.snapshot()
    with store.open_read(KEY, meta=meta, settings=settings_) as stream:
        pieces = list(iter(lambda: stream.read(1_000), b""))
    assert b"".join(pieces) == _bytes(LARGE_BYTES)
    spent = store.metrics.snapshot() - before
    assert spent.bytes_read == LARGE_BYTES
    assert spent.request_count <= 12


def test_a_sequential_reader_has_the_next_parts_on_their_way() -> None:
    store, meta, settings_ = _large(StreamSettings(part_bytes=100_000, prefetch=3))
    gate = threading.Barrier(3)  # once the reader is known to be sequential, no part arrives before three are asked for

    class Gated:
        env = store.env

        def get(self, key: str, *, byte_range: object = None) -> object:
            if threading.current_thread() is not threading.main_thread() and byte_range.start >= 400_000 and byte_range.end < LARGE_BYTES:  # type: ignore[attr-defined]
                gate.wait(20)
            return store.get(key, byte_range=byte_range)  # type: ignore[arg-type]

    with ReadStream(Gated(), meta, settings_) as stream:  # type: ignore[arg-type]
        stream.seek(0)
        got = b"".join(iter(lambda: stream.read(10_000) if stream.tell() < 600_000 else b"", b""))
    assert got == _bytes(LARGE_BYTES)[:600_000]


def test_an_object_that_changed_is_an_error_and_not_a_mixture() -> None:
    store, meta, settings_ = _large(StreamSettings(part_bytes=100_000, prefetch=0))
    with store.open_read(KEY, meta=meta, settings=settings_) as stream:
        assert stream.read(10) == _bytes(LARGE_BYTES)[:10]
        store.put(KEY, bytes(LARGE_BYTES))
        stream.seek(500_000)
        with pytest.raises(FileIOError, match=r"Open it again\."):
            stream.read(10)


def test_a_failed_fetch_is_an_error_now_and_can_be_tried_again() -> None:
    memory = MemoryBackend()
    memory.put(KEY, _bytes(LARGE_BYTES), Overwrite(), {})
    faulty = FaultyBackend(memory, [Rule(fault=Fault.BEFORE, kinds=frozenset({"get"}), nth=3, times=6)])
    store = FileIO(faulty, policy=RetryPolicy(attempts_max=1))
    got, failed = b"", 0
    with store.open_read(KEY, settings=StreamSettings(part_bytes=100_000, prefetch=2)) as stream:
        while stream.tell() < LARGE_BYTES:
            place = stream.tell()
            try:
                got += stream.read(20_000)
            except Unavailable:
                failed += 1
                got = got[:place]
                stream.seek(place)
    assert failed > 0
    assert got == _bytes(LARGE_BYTES)


def test_a_closed_reader_refuses() -> None:
    store, meta, settings_ = _large(SMALL)
    stream = store.open_read(KEY, meta=meta, settings=settings_)
    stream.close()
    stream.close()
    for call in (lambda: stream.read(1), stream.tell, lambda: stream.seek(0), lambda: stream.readinto(bytearray(1)), stream.readall):
        with pytest.raises(ValueError, match="closed"):
            call()


def test_reading_what_is_not_there_is_not_found() -> None:
    store, _ = _store()
    with pytest.raises(NotFound):
        store.open_read(KEY)


# ---- under other libraries ---------------------------------------------------------------------------------------


def test_parquet_goes_through_both_streams() -> None:
    store, _ = _store()
    table = pa.table({"a": pa.array(range(50_000)), "b": pa.array([str(n) for n in range(50_000)])})
    with store.open_write(KEY, settings=StreamSettings(part_bytes=50_000)) as stream:
        pq.write_table(table, stream, row_group_size=10_000)
    assert _kinds(store)["upload_part"] > 1
    with store.open_read(KEY) as reader:
        file = pq.ParquetFile(reader)
        assert file.num_row_groups == 5
        assert file.read_row_group(3, columns=["b"]).column("b").to_pylist() == [str(n) for n in range(30_000, 40_000)]
    with store.open_read(KEY) as reader:
        assert pq.read_table(pa.PythonFile(reader, mode="r")).equals(table)


def test_a_wrapper_that_is_detached_leaves_the_end_to_the_stream() -> None:
    store, _ = _store()
    with store.open_write(KEY, settings=SMALL) as raw:
        text = io.TextIOWrapper(raw, encoding="utf-8")
        text.write("whole")
        text.detach()
    assert store.read(KEY) == b"whole"
    with pytest.raises(ZeroDivisionError):
        _fail_within_text(store.open_write("data/half", settings=SMALL))
    assert not store.exists("data/half")


def _fail_within_text(stream: WriteStream) -> None:
    with stream:
        text = io.TextIOWrapper(stream, encoding="utf-8")
        text.write("half of what was to be written")
        raise ZeroDivisionError


def test_text_and_buffered_wrappers_work() -> None:
    store, _ = _store()
    with store.open_write(KEY, settings=SMALL) as raw, io.TextIOWrapper(raw, encoding="utf-8", newline="") as text:
        text.writelines(f"line {n} ä\n" for n in range(100))
    with io.TextIOWrapper(store.open_read(KEY), encoding="utf-8") as text:
        assert text.readlines() == [f"line {n} ä\n" for n in range(100)]
    with io.BufferedReader(store.open_read(KEY), buffer_size=16) as buffered:
        assert buffered.peek(4)[:4] == b"line"
        assert buffered.readline() == "line 0 ä\n".encode()
    with store.open_write("data/buffered", settings=SMALL) as raw, io.BufferedWriter(raw, buffer_size=7) as writer:
        writer.writelines([b"abcd"] * 20)
    assert store.read("data/buffered") == b"abcd" * 20
