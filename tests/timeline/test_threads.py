"""Entries that several threads of a new process read at once."""

from __future__ import annotations

import subprocess
import sys

import msgspec

from objcat.timeline.entry import Action, Entry, FileGroupId, Footprint, Txn, encode_entry

PROGRAM = """
import random, sys, threading, time
from objcat.timeline.entry import decode_entry

body = sys.stdin.buffer.read()
sys.setswitchinterval(1e-6)

def read(after_s):
    time.sleep(after_s)
    decode_entry(body, key="a slot")

threads = [threading.Thread(target=read, args=(random.random() * 0.003,)) for _ in range(24)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""


def test_threads_of_a_new_process_may_read_entries_at_once() -> None:
    # The second thread that met a type which msgspec was just learning crashed the process, in four runs of ten.
    entry = Entry(
        format=1,
        slot=2,
        action=Action.DELTA_COMMIT,
        txn=Txn("20261121T033800756Z-54015a233f04e16b"),
        base=1,
        committed_at_ms=1795232280766,
        changes={"a": msgspec.Raw(b"{}")},
        footprint={"a": Footprint(appends=(FileGroupId("", 1, 2),))},
    )
    body = encode_entry(entry)
    codes = [subprocess.run([sys.executable, "-c", PROGRAM], input=body, check=False).returncode for _ in range(10)]
    assert codes == [0] * 10
