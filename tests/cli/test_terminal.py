"""What comes from tables and stores is shown on a terminal and never obeyed by it; with `--json` it stays what it is."""

from __future__ import annotations

import ast
import io
import json
import unicodedata
from pathlib import Path

import pyarrow as pa
import pytest

import objcat
from fileio.env import SystemEnv
from objcat.common.progress import shown_progress
from objcat.common.terminal import visible
from tests.cli.commands import run

CLI = Path(objcat.__file__).parent / "cli"
HOSTILE = {
    "colour": "\x1b[31mred\x1b[0m",
    "title": "\x1b]0;owned\x07",
    "link": "\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\",
    "clear": "\x1b[2J\x1b[H",
    "c1": "\x9b31m\x9d0;x\x9c",
    "return": "all is well\rbroken",
    "lines": "one\nobjcat: all is well",
    "backspace": "no\b\byes",
    "bell": "ding\a",
    "bidi": "\u202eevil\u202c \u2066x\u2069 \u200f",
    "separators": "a\u2028b\u2029c\x85d\ufeff",
    "tag": "a\U000e0041b",
    "markup": "[bold]x[/bold] [/red] [link=http://x]y[/link]",
}


def column(name: str) -> str:
    return f"c {HOSTILE[name]}"


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Such text wherever a user may put it."""
    place = str(tmp_path_factory.mktemp("lake"))
    fields = [pa.field("id", pa.string()), pa.field("part", pa.string()), *(pa.field(column(name), pa.string()) for name in HOSTILE)]
    lake = objcat.connect(place)
    table = lake.create_table("trips", pa.schema(fields), key=["id", "part"], partition_by=["part"], index=objcat.BucketIndex(1))
    for text in HOSTILE.values():
        row = {"id": text, "part": text, **{column(name): HOSTILE[name] for name in HOSTILE}}
        table.upsert([row], metadata={f"by {text}": text})
    table.maintenance.savepoint(name=" ".join(HOSTILE.values()))
    return place


def is_tame(text: str) -> bool:
    bad = [char for char in text if char != "\n" and unicodedata.category(char) in ("Cc", "Cs", "Zl", "Zp")]
    return not bad and not any(char in text for char in "\u202e\u202c\u2066\u2069\u200f\ufeff\U000e0041")


COMMANDS = (
    *(["log", "TABLE"], ["log", "TABLE", "--requests"], ["show", "TABLE", "1"], ["show", "TABLE", "14"]),
    *(
        ["stats", "TABLE"],
        ["files", "TABLE"],
        ["partitions", "TABLE"],
        ["doctor", "TABLE", "--deep"],
        ["query", "LAKE", "SELECT * FROM trips"],
    ),
    *(["ls", "LAKE"], ["maintain", "TABLE", "--metrics"], ["erase", "TABLE", "--where", "true", "--dry-run"], ["compact", "TABLE"]),
)
SHOWS_ALL = ("log", "query", "schema")


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_no_command_lets_data_control_the_terminal(lake: str, words: list[str]) -> None:
    done = run(*(word.replace("TABLE", f"{lake}/trips").replace("LAKE", lake) for word in words), columns=6000)
    assert done.returncode == 0, done.stderr
    assert is_tame(done.stdout) and is_tame(done.stderr), done
    if words[0] in SHOWS_ALL and "--requests" not in words:
        shown = [name for name in HOSTILE if visible(HOSTILE[name]) in done.stdout]
        assert shown == list(HOSTILE), "it is shown, and not left out"


def test_json_is_exact(lake: str) -> None:
    told = run("query", lake, "SELECT * FROM trips", "--json").stdout
    assert is_tame(told)
    rows = [json.loads(line) for line in told.splitlines()]
    assert {row["id"] for row in rows} == {row["part"] for row in rows} == set(HOSTILE.values())
    assert all(row[column(name)] == HOSTILE[name] for row in rows for name in HOSTILE)
    log = [json.loads(line) for line in run("log", f"{lake}/trips", "--json").stdout.splitlines()]
    assert [entry["metadata"] for entry in log[1:14]] == [{f"by {text}": text} for text in HOSTILE.values()]
    for slot, text in enumerate(HOSTILE.values(), 1):
        entry = run("show", f"{lake}/trips", str(slot), "--json").stdout
        assert is_tame(entry) and json.loads(entry)["metadata"] == {f"by {text}": text}
    columns = json.loads(run("schema", f"{lake}/trips", "--json").stdout)["columns"]
    assert [one["column"] for one in columns] == ["id", "part", *map(column, HOSTILE)]


@pytest.mark.parametrize("name", HOSTILE)
def test_errors_do_not_either(lake: str, name: str) -> None:
    text = HOSTILE[name]
    for words in (["query", lake, f"SELECT `{text}` FROM trips"], ["query", lake, f"SELECT * FROM `{text}`"], ["log", f"{lake}/{text}"]):
        done = run(*words)
        assert done.returncode == 2 and is_tame(done.stderr) and done.stderr.count("\n") == 1, done.stderr
        told = run(*words, "--json")
        assert told.returncode == 2 and is_tame(told.stderr) and json.loads(told.stderr)["exit_code"] == 2


@pytest.mark.parametrize("name", HOSTILE)
def test_what_somebody_else_put_into_the_bucket_does_not(tmp_path: Path, name: str) -> None:
    """An entry that only claims to be one."""
    table = objcat.connect(tmp_path / "lake").create_table("trips", pa.schema([("id", pa.int64())]), key=["id"])
    table.upsert([{"id": 1}])
    (path,) = tmp_path.glob("lake/tables/*/log/*1.json")
    forged = json.loads(path.read_text())
    path.write_text(json.dumps({**forged, "metadata": {"x": HOSTILE[name]}, "writer": HOSTILE[name], "txn": HOSTILE[name]}))
    for words in (["log"], ["show", "1"], ["doctor"]):
        done = run(words[0], f"{tmp_path}/lake/trips", *words[1:])
        assert is_tame(done.stdout) and is_tame(done.stderr), done


class Terminal(io.StringIO):
    """A terminal that remembers."""

    def isatty(self) -> bool:
        return True


class Later(SystemEnv):
    """Time that has passed already."""

    def __init__(self) -> None:
        super().__init__()
        self._calls = 0

    def monotonic_s(self) -> float:
        self._calls += 1
        return 100.0 * self._calls


@pytest.mark.parametrize("name", HOSTILE)
def test_progress_does_not(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    with shown_progress(Later(), f"objcat: {HOSTILE[name]}", 2, unit="steps") as advance:
        advance(1)
    drawn = terminal.getvalue()
    assert "objcat" in drawn
    assert "\x1b]" not in drawn and "\a" not in drawn and "\x9b" not in drawn and "\u202e" not in drawn
    assert name != "markup" or "[bold]x[/bold]" in drawn


def test_what_is_harmless_stays() -> None:
    for text in ("Zürich, Ђ, 東京", "👩‍👩‍👧 🇮🇹 ❤️", "שלום", "می‌خواهم", "a\\b", "100 %"):
        assert visible(text) == text
    assert visible("\x1b\n\u202e") == "\\x1b\\n\\u202e"


def test_commands_print_in_one_way_only() -> None:
    """A line, a cell or a title that goes past `output` would not be tamed."""
    for path in CLI.glob("*.py"):
        if path.name == "output.py":
            continue
        tree = ast.parse(path.read_text())
        names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
        called = {node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
        assert not {"print", "Text", "Console", "Table", "Status"} & called, path.name
        assert "stdout" not in names, path.name
        rich = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("rich")}
        assert rich <= {"rich.text"}, (path.name, rich)
