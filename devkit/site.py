"""`./dev docs`: the pages of `docs/` as a site, built by MkDocs, whose packages are installed beside the environment when first needed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from devkit import prepare, toolchain
from devkit.paths import ROOT, cache_dir

ADDRESS = "127.0.0.1:8000"
_USAGE = (
    "dev docs: ./dev docs [MKDOCS OPTIONS] serves the site, ./dev docs build [FOLDER] builds it, ./dev docs reference writes pages, "
    "./dev docs vectors writes spec/, ./dev docs engines [--all] asks all engines what they read"
)


def docs(arguments: Sequence[str]) -> int:
    """Serve the site, build it into a folder, or write generated pages, or the data of `spec/`. Returns the exit status."""
    match list(arguments):
        case ["reference"]:
            from devkit.reference import write_pages

            return write_pages()
        case ["engines", *options]:
            return _record_engines(options)
        case ["vectors"]:
            from devkit.spec_data import write_data

            return write_data()
        case ["build"]:
            return build(cache_dir() / "site")
        case ["build", folder] if not folder.startswith("-"):
            return build(Path(folder).resolve())
        case options if all(
            option.startswith("-") or before.startswith("-") for before, option in zip(["-", *options], options, strict=False)
        ):
            address = [] if {"-a", "--dev-addr"} & {option.partition("=")[0] for option in options} else ["--dev-addr", ADDRESS]
            watched = [argument for package in ("objcat", "fileio") for argument in ("--watch", str(ROOT / package))]
            return _mkdocs(["serve", *address, *watched, *options])
        case _:
            print(_USAGE, file=sys.stderr)
            return 2


def _record_engines(options: Sequence[str]) -> int:
    """Ask all engines what they read, and write the record and the page that is made from it."""
    from devkit.reference import write_pages

    prepare.install(["engines", "trino"])
    environment = toolchain.run_environment()
    asked = subprocess.run([sys.executable, "-m", "tests.engines.record", *options], cwd=ROOT, env=environment, check=False)
    return asked.returncode or write_pages()


def build(folder: Path) -> int:
    """Build the site into a folder. It fails on a broken link, and on a page that no menu names."""
    if folder.is_relative_to(ROOT):
        print(f"dev docs: {folder} is in the tree: name a folder outside of it", file=sys.stderr)
        return 2
    status = _mkdocs(["build", "--strict", "--clean", "--site-dir", str(folder)])
    if status == 0:
        print(f"dev docs: the site is in {folder}")
    return status


def _mkdocs(arguments: Sequence[str]) -> int:
    search = os.pathsep.join(filter(None, [str(prepare.site_builder()), os.environ.get("PYTHONPATH")]))
    # Material for MkDocs prints advice for its next version, which says nothing about this site.
    environment = {**os.environ, "PYTHONPATH": search, "NO_MKDOCS_2_WARNING": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "mkdocs", arguments[0], "--config-file", str(ROOT / "mkdocs.yml"), *arguments[1:]]
    return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode
