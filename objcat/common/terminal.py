"""Text on a terminal: characters that control it, or hide or reverse other text, are shown as escapes."""

from __future__ import annotations

import re

_CONTROLS = re.compile(
    "["
    "\x00-\x1f\x7f-\x9f"  # C0 and C1: escape sequences, a bell, a return, a backspace, a new line
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # change the direction of the following text
    "\u2028\u2029\ufeff\ufff9-\ufffb"  # end a line, or are invisible
    "\U000e0000-\U000e007f"  # tags: invisible
    "\ud800-\udfff"  # halves of characters, which no terminal takes
    "]"
)


def visible(text: str) -> str:
    """The text with each such character as Python writes it: `\\x1b`, `\\n`, `\\u202e`. All else is unchanged."""
    return _CONTROLS.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), text)
