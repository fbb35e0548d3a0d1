"""A build hook: README.md as the page of a package index, which has no files beside it.

A link to another file keeps its text, a picture is left out, and the list of pages says where they are instead.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_FENCED = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
_PICTURE = re.compile(r"^!\[[^\]]*\]\([^)]+\)\n\n", re.MULTILINE)
_LINK = re.compile(r"\[([^\]]+)\]\((?!https?:)[^)]+\)")
FURTHER = """## Further

The documentation is in the source archive, in the folder `docs`. Begin with `docs/tutorial.md`:

    pip download --no-deps --no-binary reltask reltask
"""


def index_page(readme: str) -> str:
    """The page, from the text of README.md."""
    text = readme.partition("## Further\n")[0] + FURTHER
    parts = _FENCED.split(text)
    parts[::2] = [_LINK.sub(r"\1", _PICTURE.sub("", part)) for part in parts[::2]]
    return "".join(parts)


class IndexPage(MetadataHookInterface):
    """Called by hatchling."""

    def update(self, metadata: dict[str, Any]) -> None:
        readme = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": index_page(readme)}
