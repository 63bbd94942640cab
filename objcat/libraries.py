"""Libraries that not everybody has, imported when they are first needed."""

from __future__ import annotations

import importlib
from typing import Any

from fileio.errors import MissingDependency


def library(name: str, *, needed_by: str) -> Any:
    """A module of the extra `local`. needed_by: whoever needs it, and the verb, for the sentence. Raises MissingDependency."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise MissingDependency(f"{needed_by} {name}: pip install 'objcat[local]'") from error
