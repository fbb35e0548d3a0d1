"""`python -m tools.site`: stage the pages, build the site, check its links."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tools.site.check import problems
from tools.site.stage import PAGES, ROOT, stage

SITE = ROOT / "build" / "site"


def main() -> int:
    """Build; the exit status says whether every link holds."""
    stage(mermaid=Path(sys.argv[2]) if len(sys.argv) > 2 else None)  # noqa: PLR2004 - the second argument
    subprocess.run([sys.argv[1], "build", "--config-file", str(PAGES.parent / "mkdocs.yml")], check=True)  # noqa: S603
    found = problems(SITE)
    for problem in found:
        print(problem, file=sys.stderr)
    print(f"{SITE.relative_to(ROOT)}: {sum(1 for _ in SITE.rglob('*.html'))} pages, {len(found)} dead links")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
