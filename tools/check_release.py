"""Check that a tag can be released: `python tools/check_release.py v0.2.0`.

The tag names the version of pyproject.toml and of `reltask.version`, and the changelog has a dated section for it.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]


def problems(tag: str, root: Path = ROOT) -> list[str]:
    """A line for each thing that does not fit."""
    version = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    module = (root / "src" / "reltask" / "version.py").read_text(encoding="utf-8")
    changelog = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    found = []
    if tag != f"v{version}":
        found.append(f"The tag is {tag}, but pyproject.toml says version {version}.")
    if f'"{version}"' not in module:
        found.append(f"src/reltask/version.py does not say {version}.")
    if not re.search(rf"^## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d$", changelog, re.MULTILINE):
        found.append(f"CHANGELOG.md has no section '## [{version}] - YYYY-MM-DD'.")
    return found


if __name__ == "__main__":
    wrong = problems(sys.argv[1])
    print("\n".join(wrong) or f"{sys.argv[1]} can be released.")
    sys.exit(1 if wrong else 0)
