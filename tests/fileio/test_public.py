"""The public names of `fileio`, pinned: a change here is a change for everybody."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

import fileio
from fileio import errors

REPOSITORY = Path(__file__).parents[2]
PUBLIC = """
    FileIO StoreDescription describe_store open_store require_written
    Backend Upload Capabilities KEY_BYTES_MAX
    Buffer ByteRange Range Suffix PutMode Overwrite Create Update
    PutOutcome Written PreconditionFailed OutcomeUnknown Version ObjectMeta GetResult NotModified ListPage DeleteResult
    ReadStream WriteStream StreamSettings
    Env SystemEnv default_env RetryPolicy Secret MetricsSnapshot
    FileIOError NotFound BucketNotFound PermissionDenied CredentialsError Throttled Unavailable StoreFull ObjectChanged UploadLost
    NotWritten Unsupported InvalidKey InvalidConfig StoreUnfit MissingDependency
"""


def test_the_public_names() -> None:
    assert sorted(fileio.__all__) == sorted(PUBLIC.split())
    assert all(hasattr(fileio, name) for name in fileio.__all__)


def test_every_public_class_and_function_is_documented() -> None:
    for name in fileio.__all__:
        value = getattr(fileio, name)
        if inspect.isclass(value) or inspect.isfunction(value):
            assert value.__doc__, f"{name} has no docstring"
            assert not value.__doc__.startswith(f"{name}("), f"{name} has a generated docstring only"


def test_every_error_is_public_and_drawn_in_the_tree() -> None:
    found = {name: value for name, value in vars(errors).items() if inspect.isclass(value) and issubclass(value, Exception)}
    assert set(found) <= set(fileio.__all__)
    for name, value in found.items():
        assert issubclass(value, fileio.FileIOError)
        assert name in (errors.__doc__ or "")


def test_importing_it_needs_no_sdk_and_no_arrow() -> None:
    code = (
        "import sys, fileio, fileio.check.probe; "
        "print([m for m in ('boto3', 'botocore', 'google.cloud', 'azure', 'pyarrow', 'pyspark') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
