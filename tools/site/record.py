"""Records `reltask demo` for the first page of the site: `python -m tools.site.record` renews tools/site/demo.json."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

TARGET = Path(__file__).parent / "demo.json"


def main() -> int:
    """Run the demo; write each line with the second at which it came."""
    command = [sys.executable, "-u", "-m", "reltask.cli", "demo"]
    begun, lines = time.monotonic(), []
    # events go to stderr, the result to stdout
    with subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as demo:  # noqa: S603
        lines = [[round(time.monotonic() - begun, 1), line.rstrip()] for line in demo.stdout or ()]
    entries = ",\n".join(f" {json.dumps(line, ensure_ascii=False)}" for line in lines)
    TARGET.write_text(f"[\n{entries}\n]\n", encoding="utf-8")
    return demo.returncode


if __name__ == "__main__":
    sys.exit(main())
