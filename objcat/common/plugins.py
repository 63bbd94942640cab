"""Plug-ins: what other installed packages offer by entry points, found by a group and a name.

A table, a lake or a caller says the name. No text leads to a module that no installed package offers under that name.
"""

from __future__ import annotations

import importlib.metadata
from typing import Any

from fileio.options import nearest
from objcat.common.validation import shown
from objcat.errors import InvalidInput, PluginMissing

NAME_CHARACTERS_MAX = 100
_BESIDE_LETTERS = "._-"


def load_plugin(group: str, name: str, *, what: str) -> Any:
    """Load what an installed package offers under a name.

    Args:
        group: The group of entry points.
        name: The name in the group.
        what: What it is, for errors, such as "compaction strategy".

    Raises:
        PluginMissing: No installed package offers it, two do, or its code cannot be imported.
    """
    found = [point for point in importlib.metadata.entry_points(group=group) if point.name == name]
    if not found:
        known = sorted({point.name for point in importlib.metadata.entry_points(group=group)})
        there = f"Installed are {', '.join(map(repr, known))} ({nearest(name, known)})" if known else "None is installed"
        raise PluginMissing(
            f"No installed package offers the {what} {name!r}. {there}. Install the package that has the entry point {name!r} of the "
            f"group {group!r}, in this environment."
        )
    if len(found) > 1:
        packages = sorted(str(point.dist.name) for point in found if point.dist is not None)
        raise PluginMissing(f"Several packages offer the {what} {name!r}: {', '.join(packages)}. Uninstall all but one.")
    try:
        return found[0].load()
    except (ImportError, AttributeError) as error:
        raise PluginMissing(
            f"The {what} {name!r} cannot be imported from {found[0].value!r}: {error}. Install what its package needs."
        ) from error


def check_plugin_name(value: Any, *, what: str) -> str:
    """The name of a plug-in: letters, digits, dots, `_` and `-`. Raises InvalidInput."""
    if not isinstance(value, str) or not 0 < len(value) <= NAME_CHARACTERS_MAX or not _is_plain(value):
        raise InvalidInput(
            f"{what}={shown(value)} is not the name of a plug-in. Give letters, digits, '.', '_' and '-', as the package that offers it "
            "says."
        )
    return value


def _is_plain(name: str) -> bool:
    return name.isascii() and all(char.isalnum() or char in _BESIDE_LETTERS for char in name)
