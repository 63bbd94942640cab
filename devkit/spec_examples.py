"""`docs/spec/examples.md`: whole objects of the tables in `spec/tables/`, as JSON that is set for people."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from devkit.paths import ROOT

PAGE = ROOT / "docs" / "spec" / "examples.md"
WIDTH = 140


@dataclass(frozen=True)
class Example:
    """One object. says: a sentence about it. key: relative to the objects of its table."""

    title: str
    says: str
    feature: str
    key: str

    def content(self) -> Any:
        """The object."""
        return json.loads((ROOT / "spec" / "tables" / self.feature / "objects" / self.key).read_bytes())


def _slot(number: int, prefix: str = "") -> str:
    return f"{prefix}log/{number:020d}.json"


EXAMPLES: Sequence[Example] = [
    Example("CREATE", "Slot 0 of a table.", "event-time", _slot(0)),
    Example("DELTA_COMMIT with base files", "The first insert into empty file groups.", "merge-on-read", _slot(1)),
    Example("DELTA_COMMIT with log rows", "An upsert; its log file holds rows of two file groups.", "merge-on-read", _slot(2)),
    Example("ROLLBACK", "It fences a writer that died.", "merge-on-read", _slot(4)),
    Example("COMMIT", "Copy-on-write: base files, and ordered deletes next to them.", "copy-on-write", _slot(3)),
    Example("COMPACTION", "Ordered deletes stay as log rows that count as of `as_of`.", "event-time", _slot(6)),
    Example("COMPACTION that clusters", "Base files in another order, with the feature that says so.", "clustered", _slot(2)),
    Example("REPLACE that splits", "Nothing but a bucket count.", "split", _slot(3)),
    Example("REPLACE that overwrites", "A partition is replaced whole.", "overwritten", _slot(2)),
    Example("SCHEMA", "Another partition spec; the previous one goes to `former`.", "repartitioned", _slot(2)),
    Example("DELTA_COMMIT under a lookup index", "Digests of the keys are in the footprint.", "index-simple", _slot(3)),
    Example("DELTA_COMMIT under a record index", "The second table is in `index`.", "index-record", _slot(3)),
    Example("A transaction", "One slot of two tables.", "several-tables", _slot(3)),
    Example("A position", "A commit of a source, with a small state.", "positions", _slot(2)),
    Example("CLEAN", "A new retention floor.", "clean-and-savepoint", _slot(10)),
    Example("SAVEPOINT", "It retains a slot.", "clean-and-savepoint", _slot(5)),
    Example("RESTORE", "It gives back the state of a slot, with the versions of applications.", "restored", _slot(6)),
    Example("CLOSE", "A drop.", "restored", _slot(9)),
    Example("A tombstone", "An archived slot.", "checkpoints-and-archive", _slot(40)),
    Example("A redacted CREATE", "A tombstone below an erasure; the whole entry is in the history file.", "erasure", _slot(0)),
    Example("A void root", "No checkpoint is here, and none will be.", "checkpoints-and-archive", f"checkpoints/{64:020d}/root.json"),
    Example("A root", "The checkpoint of a log with one table.", "erasure", f"checkpoints/{16:020d}/root.json"),
    Example("A hint", "`head.json`.", "checkpoints-and-archive", "head.json"),
    Example("A catalog's first slot", "The first name of a lake, in a new namespace.", "names", _slot(0, "_catalog/")),
    Example("A catalog's drop", "A name goes, and its table is remembered.", "names", _slot(6, "_catalog/")),
]


def examples_page() -> str:
    """The text of the page."""
    source = (
        "They come from the tables of the [conformance data](../../spec/README.md); [the format](format.md) says what each field means.\n"
        "In the bucket they have another layout, over which `digest` is right."
    )
    head = "<!-- Written by `./dev docs vectors` from spec/tables. Do not edit it here. -->"
    parts = ["# Examples", head, "This page shows whole stored objects, which objcat wrote.", source]
    for example in EXAMPLES:
        place = f"`spec/tables/{example.feature}/objects/{example.key}`"
        parts.append(f"## {example.title}\n\n{example.says}\nIt is {place}.\n\n```json\n{laid_out(example.content())}\n```")
    return "\n\n".join(parts) + "\n"


def laid_out(value: Any, indent: int = 0) -> str:
    """JSON with everything on one line that fits there."""
    line = json.dumps(value, ensure_ascii=False)
    if indent + len(line) <= WIDTH or not isinstance(value, dict | list) or not value:
        return line
    inner = indent + 2
    if isinstance(value, dict):
        items = [f"{json.dumps(name)}: {laid_out(item, inner)}" for name, item in value.items()]
        opened, closed = "{", "}"
    else:
        items = [laid_out(item, inner) for item in value]
        opened, closed = "[", "]"
    between = "\n" + " " * inner
    return f"{opened}{between}" + f",{between}".join(items) + f"\n{' ' * indent}{closed}"


def write_examples() -> None:
    """Write the page."""
    PAGE.write_text(examples_page())
