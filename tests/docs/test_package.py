"""What a package index gets: a source distribution without tests, whose wheel works, and a description without links that lead nowhere."""

from __future__ import annotations

import email
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from email.message import Message
from pathlib import Path

import pytest

import objcat
from devkit import prepare
from devkit.paths import ROOT


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the source distribution, and the wheel that is built from it alone."""
    place = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(place), str(ROOT)]
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": str(prepare.package_builder())}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return place


def metadata(built: Path) -> Message:
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as files:
        (name,) = [name for name in files.namelist() if name.endswith(".dist-info/METADATA")]
        return email.message_from_bytes(files.read(name))


def test_the_source_distribution_has_the_packages_and_the_pages_and_no_tests(built: Path) -> None:
    (source,) = built.glob("*.tar.gz")
    with tarfile.open(source) as files:
        names = {name.partition("/")[2] for name in files.getnames()}
    places = {name.partition("/")[0] for name in names}
    assert places == {
        "fileio",
        "objcat",
        "pyspark_objcat",
        "docs",
        "spec",
        "README.md",
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "pyproject.toml",
        "PKG-INFO",
        ".gitignore",
    }
    tracked = subprocess.run(
        ["git", "ls-files", "fileio", "objcat", "pyspark_objcat", "docs"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert set(tracked.stdout.split()) <= names
    assert not [name for name in names if "test" in name and not name.startswith(("fileio/testing/", "objcat/testing/", "docs/"))]


def test_the_wheel_of_the_source_distribution_works(built: Path, tmp_path: Path) -> None:
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as files:
        files.extractall(tmp_path / "site")
        assert not [name for name in files.namelist() if name.startswith(("tests/", "docs/", "devkit/", "benchmarks/"))]
    code = "import objcat, fileio.testing.conformance, objcat.cli; print(objcat.__file__, objcat.__version__)"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(tmp_path / "site" / "objcat" / "__init__.py"), objcat.__version__]


def test_the_description_has_no_link_that_leads_nowhere(built: Path) -> None:
    description = str(metadata(built).get_payload())
    assert description.startswith("# objcat") and "## Try it" in description
    targets = re.findall(r"\]\(([^)\s]+)\)", description)
    assert [target for target in targets if not re.match(r"https?://", target)] == []
    assert "tutorial (`docs/tutorial.md`)" in description and "changelog (`CHANGELOG.md`)" in description


def test_the_metadata_says_what_the_extras_are(built: Path) -> None:
    found = metadata(built)
    assert found["Version"] == objcat.__version__
    assert sorted(found.get_all("Provides-Extra", [])) == [
        "adopt",
        "all",
        "azure",
        "connect",
        "gcs",
        "ingest-folder",
        "ingest-kafka",
        "ingest-mysql",
        "ingest-postgres",
        "local",
        "mirrors",
        "s3",
        "serve",
        "spark",
    ]
    assert found["Description-Content-Type"] == "text/markdown"
