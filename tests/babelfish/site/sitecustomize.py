"""Imported by every Python process that a test starts while the TDS server is Babelfish: see tests/babelfish."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[3]))

from tests.babelfish import install

install()
