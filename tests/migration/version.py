"""`python -m tests.migration.version FOLDER …` is `reltask …` with the scripts of FOLDER instead of `database`.

So the same code plays an older or a newer version of reltask, in a process of its own.
"""

from __future__ import annotations

import sys
from pathlib import Path

from reltask.cli import main
from reltask.stores import migration

scripts = Path(sys.argv.pop(1))
migration._folder = lambda dialect: scripts / dialect
main()
