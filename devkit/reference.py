"""`./dev docs reference`: the pages of `docs/reference/` that come from code: properties, errors, the command line, and Python's names.

A test compares the pages in the tree with what this module makes.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import typer

import fileio
import fileio.errors
import objcat
import objcat.errors
from devkit.engines_page import engines_page
from devkit.paths import ROOT
from devkit.prose import sentences
from objcat.cli import app
from objcat.metadata import properties
from objcat.table import transaction
from objcat.table.table import Table

FOLDER = ROOT / "docs" / "reference"
_HEAD = "<!-- Written by `./dev docs reference` from {source}. Do not edit it here. -->"
_TO_DO = "What to do: "
_ATTRIBUTES = "Attributes:"


def pages() -> Mapping[str, str]:
    """The text of every generated page, by its name in `docs/reference/`."""
    made: Mapping[str, Callable[[], str]] = {
        "properties.md": properties_page,
        "errors.md": errors_page,
        "cli.md": cli_page,
        "python.md": python_page,
        "engines.md": engines_page,
    }
    return {name: make() for name, make in made.items()}


def write_pages() -> int:
    """Write the generated pages. Returns the exit status."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, text in pages().items():
        (FOLDER / name).write_text(text)
        print(f"dev docs: {(FOLDER / name).relative_to(ROOT)} is written")
    return 0


def properties_page() -> str:
    """`properties.md`: a table of the properties, and a section for each."""
    described = _constants(Path(inspect.getfile(properties)))
    names = [name for name in described if name in {*properties.NUMBERS, *properties.WORDS, *properties.PLUGINS}]
    table = ["| property | values | default | since |", "|---|---|---|---|"]
    table += [f"| [`{name}`](#{name}) | {_values(name)} | {_default(name)} | {_since(name)} |" for name in names]
    family = f"{properties.STATISTICS}<column>"
    title = f"{properties.STATISTICS}column"
    anchor = re.sub(r"[^\w\-]", "", title)
    table.append(f"| [`{family}`](#{anchor}) | {_words(properties.STATISTICS_KINDS)} | `values` | {_since(properties.STATISTICS)} |")
    sections = [f"## {name}\n\n{_lines(described[name])}" for name in names]
    sections.append(f"## {title}\n\nThe name of the property is `{family}`.\n{_lines(described[properties.STATISTICS])}")
    return _page(
        "Table properties",
        "objcat/metadata/properties.py",
        "This page lists the properties of a table that change what objcat does.",
        'Set them with `create_table(properties={"keep_hours": "72"})`, `table.set_properties(...)`, or `TBLPROPERTIES` in SQL.\n'
        "Every value is text.\n"
        'Unset one with `table.set_properties(unset=["keep_hours"])`; the value `None` is refused.\n'
        "All other properties are notes of your own, and change nothing.\n"
        "objcat refuses a note whose name looks like a misspelt property.\n"
        "Begin the names of your notes with a prefix and a dot, such as `team.owner`.",
        "\n".join(table),
        *sections,
    )


def _constants(path: Path) -> dict[str, str]:
    """The value and the docstring of every constant of a module that has a docstring."""
    body = ast.parse(path.read_text()).body
    described = {}
    for statement, following in itertools.pairwise(body):
        match statement, following:
            case ast.Assign(value=ast.Constant(value=str(name))), ast.Expr(value=ast.Constant(value=str(text))):
                described[name] = " ".join(text.split())
    return described


def _values(name: str) -> str:
    if name in properties.WORDS:
        return _words(properties.WORDS[name])
    if name in properties.PLUGINS:
        return f"a name, such as `{properties.PLUGINS[name]}`"
    number = properties.NUMBERS[name]
    return f"{number.least:,} to {number.most:,}" if number.most < 10**18 - 1 else f"{number.least:,} or more"


def _words(words: Any) -> str:
    return ", ".join(f"`{word}`" for word in words)


def _default(name: str) -> str:
    value = properties.DEFAULTS.get(name)
    if value is None:
        return "not set"
    for unit, size in (("GiB", 1024**3), ("MiB", 1024**2)):
        if value.isdigit() and int(value) % size == 0:
            return f"`{value}` ({int(value) // size:,} {unit})"
    return f"`{value}`"


def _since(name: str) -> str:
    return properties.SINCE.get(name, properties.FIRST_VERSION)


def errors_page() -> str:
    """`errors.md`: the trees of errors, and a section for each class."""
    parts = []
    for title, root in (("Errors of tables", objcat.errors.ObjcatError), ("Errors of storage", fileio.errors.FileIOError)):
        tree = "\n".join(_tree(root))
        parts.append(f"## {title}\n\nAll of them are in `{root.__module__}`.\n\n```text\n{tree}\n```")
        parts += [_error(cls) for cls in _classes(root)]
    return _page(
        "Errors",
        "objcat/errors.py and fileio/errors.py",
        "This page says when each error is raised and what you can do about it.",
        "Every error is an `objcat.errors.ObjcatError` or a `fileio.FileIOError`.\n"
        "Its message names the table, what was expected and the next step.\n"
        "Errors of storage pass through objcat unchanged.",
        *parts,
    )


def _classes(root: type[Exception]) -> Iterator[type[Exception]]:
    yield root
    for cls in root.__subclasses__():
        if cls.__module__ == root.__module__:
            yield from _classes(cls)


def _tree(cls: type[Exception], prefix: str = "", branch: str = "") -> Iterator[str]:
    yield f"{prefix}{branch}{cls.__name__}"
    below = [sub for sub in cls.__subclasses__() if sub.__module__ == cls.__module__]
    inner = prefix + {"": "", "├── ": "│   ", "└── ": "    "}[branch]
    for place, sub in enumerate(below):
        yield from _tree(sub, inner, "└── " if place == len(below) - 1 else "├── ")


def _error(cls: type[Exception]) -> str:
    """The section of one class. Raises ValueError when its docstring does not say what to do."""
    what, *others = _paragraphs(cls)
    lines = _lines(what)
    to_do = next((text.removeprefix(_TO_DO) for text in others if text.startswith(_TO_DO)), None)
    is_root = cls.__base__ is Exception
    if to_do is None and not is_root:
        raise ValueError(f"the docstring of {cls.__module__}.{cls.__name__} has no paragraph that begins with {_TO_DO!r}")
    parts = [f"### {cls.__name__}", lines if is_root or cls.__base__ is None else f"{lines}\nIt is an `{cls.__base__.__name__}`."]
    if to_do is not None:
        parts.append(f"**What to do:** {_lines(to_do)}")
    doc = inspect.getdoc(cls) or ""
    if _ATTRIBUTES in doc:
        named = re.findall(r"^ +(\w+): (.+(?:\n {8,}.+)*)", doc.partition(_ATTRIBUTES)[2], re.MULTILINE)
        parts.append("\n".join(f"- `{name}`: {' '.join(text.split())}" for name, text in named))
    return "\n\n".join(parts)


def cli_page() -> str:
    """`cli.md`: the commands with their arguments and options."""
    group: Any = typer.main.get_command(app)
    commands = dict(_flat(group))
    table = ["| command | what it does |", "|---|---|"]
    table += [
        f"| [`objcat {name}`](#objcat-{name.replace(' ', '-')}) | {_cell(_sentence(command.help))} |" for name, command in commands.items()
    ]
    return _page(
        "Command line",
        "objcat/cli",
        "This page lists every command of `objcat` with its arguments and options.",
        "`objcat --help` lists the commands, and `objcat COMMAND --help` shows one.",
        _exit_codes(),
        "## Commands\n\n" + "\n".join(table),
        "## Options before the command\n\n" + _parameters(group),
        *(_command(name, command) for name, command in commands.items()),
    )


def _flat(group: Any, before: str = "") -> Iterator[tuple[str, Any]]:
    """The commands of a group, and those of groups in it, by the words that call them."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _flat(command, f"{before}{name} ")
        else:
            yield f"{before}{name}", command


def _exit_codes() -> str:
    return (
        "## Exit codes\n\n"
        "| code | meaning |\n|---|---|\n"
        "| 0 | The command did what you asked. |\n"
        "| 1 | The answer is no: the store is not fit for commits, a table is damaged, or `ingest once` has set tables aside. |\n"
        "| 2 | The input is wrong, credentials are missing, or the store does not answer. |\n"
        "| 130 | You interrupted the command. |\n"
        "| 143 | SIGTERM ended the command. |\n\n"
        "An error is text on stderr, or one JSON object there with `--json`."
    )


def _command(name: str, command: Any) -> str:
    arguments = [parameter for parameter in command.params if parameter.param_type_name == "argument"]
    usage = " ".join([f"objcat {name}", *(_metavar(argument) for argument in arguments), "[OPTIONS]"])
    return f"## objcat {name}\n\n{_paragraph_lines(command.help)}\n\n```text\n{usage}\n```\n\n{_parameters(command)}"


def _metavar(argument: Any) -> str:
    name = (argument.metavar or argument.name.upper()).strip("{}[]")
    return name if argument.required else f"[{name}]"


def _parameters(command: Any) -> str:
    rows = ["| argument or option | meaning |", "|---|---|"]
    for parameter in command.params:
        if parameter.param_type_name == "argument":
            rows.append(f"| `{_metavar(parameter)}` | {_cell(parameter.help)} |")
            continue
        names = ", ".join(f"`{name}`" for name in (*parameter.opts, *parameter.secondary_opts))
        value = "" if parameter.is_flag else f" `{parameter.metavar or _type_of(parameter)}`"
        notes = [
            text
            for text in (_option_default(parameter), f"From `{parameter.envvar}` when it is not passed." if parameter.envvar else "")
            if text
        ]
        required = ["Required."] if parameter.required else []
        rows.append(f"| {names}{value} | {_cell(' '.join([parameter.help or '', *required, *notes]))} |")
    return "\n".join(rows)


def _type_of(parameter: Any) -> str:
    return {int: "INTEGER", float: "NUMBER"}.get(parameter.type_descriptor.annotation, "TEXT")


def _option_default(parameter: Any) -> str:
    default = parameter.default
    if callable(default) or default in (None, False, True, "", ()) or "Sentinel" in type(default).__name__:
        return ""
    return f"Default: `{default}`."


def python_page() -> str:
    """`python.md`: the public names, whose documentation MkDocs inserts."""
    namespaces = [
        *(_returned(Table, name) for name in ("maintenance", "alter", "inspect")),
        _returned(objcat.Lake, "namespaces"),
    ]
    spark = _exported(ROOT / "objcat" / "spark" / "__init__.py")
    errors = {name for name in vars(fileio.errors) if isinstance(getattr(fileio.errors, name), type)}
    return _page(
        "Python",
        "`__all__` of the packages",
        "This page documents every public name of objcat, `objcat.spark` and `fileio`.",
        "The site shows the documentation of each name, which comes from its docstring.\n[Errors](errors.md) have a page of their own.",
        _names("objcat", "objcat", [name for name in objcat.__all__ if name not in ("errors", "__version__")]),
        _names("Namespaces of Table and Lake", "", namespaces),
        _names("Tables of a transaction", transaction.__name__, ["TransactionTable", "TransactionAlterer"]),
        _names("objcat.spark", "objcat.spark", spark),
        _names("fileio", "fileio", [name for name in fileio.__all__ if name not in errors]),
    )


def _names(title: str, package: str, names: Sequence[str]) -> str:
    return "\n\n".join([f"## {title}", *(f"::: {package}{'.' if package else ''}{name}" for name in names)])


def _returned(owner: type, name: str) -> str:
    """The full name of the class that a property of another class returns."""
    getter = inspect.getattr_static(owner, name).fget
    annotation = getter.__annotations__["return"]
    module = importlib.import_module(getter.__module__)
    cls = getattr(module, annotation) if isinstance(annotation, str) else annotation
    return f"{cls.__module__}.{cls.__qualname__}"


def _exported(path: Path) -> list[str]:
    """The `__all__` of a module, without importing it."""
    for statement in ast.parse(path.read_text()).body:
        match statement:
            case ast.Assign(targets=[ast.Name(id="__all__")], value=value):
                return [str(name) for name in ast.literal_eval(value)]
    raise ValueError(f"{path} has no __all__")


def _page(title: str, source: str, first: str, *parts: str) -> str:
    return "\n\n".join([f"# {title}", _HEAD.format(source=source), first, *parts]) + "\n"


def _paragraphs(cls: type) -> list[str]:
    doc = (inspect.getdoc(cls) or "").partition(_ATTRIBUTES)[0]
    return [" ".join(paragraph.split()) for paragraph in doc.strip().split("\n\n")]


def _lines(text: str) -> str:
    """A paragraph with one sentence on each line."""
    return "\n".join(_split(text))


def _paragraph_lines(text: str | None) -> str:
    return "\n\n".join(_lines(" ".join(paragraph.split())) for paragraph in (text or "").split("\n\n"))


def _sentence(text: str | None) -> str:
    return _split(" ".join((text or "").split()))[0]


def _split(text: str) -> list[str]:
    """The sentences of a paragraph. Code spans are hidden meanwhile, so that a dot inside one ends no sentence."""
    spans: list[str] = []

    def hide(span: re.Match[str]) -> str:
        spans.append(span[0])
        return f"`{len(spans) - 1}`"

    found = sentences(re.sub(r"`[^`]+`", hide, text))
    return [re.sub(r"`(\d+)`", lambda number: spans[int(number[1])], sentence) for sentence in found]


def _cell(text: str | None) -> str:
    return " ".join((text or "").split()).replace("|", "\\|")
