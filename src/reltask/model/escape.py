r"""Text from a database, an error or a user, made harmless for a terminal, a log and a reader.

    C0, DEL, C1           a terminal obeys them: move, erase, set the title, write the clipboard
    \n, U+2028, U+2029    what follows looks like a line of its own
    bidi controls         what follows is shown in another order than it is stored

Each becomes the escape that JSON has for it, which is readable in plain text as well; so a JSON document stays one.
All other characters stay as they are. Escaping twice changes nothing.
"""

from __future__ import annotations

import re

_HOSTILE = "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]"
_SHORT = {"\n": r"\n", "\r": r"\r", "\t": r"\t"}


def escape(text: str) -> str:
    """The text on one line, without any character that a terminal obeys."""
    return text if text.isprintable() else re.sub(_HOSTILE, _escaped, text)


def escape_lines(text: str) -> list[str]:
    """The lines of a text that may have several, such as a traceback; each is escaped."""
    return [escape(line) for line in text.replace("\r\n", "\n").split("\n")]


def _escaped(found: re.Match[str]) -> str:
    return _SHORT.get(found[0], f"\\u{ord(found[0]):04x}")
