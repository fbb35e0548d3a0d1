"""A database of the tests' own, named before `shop` is imported."""

import os
import tempfile

FOLDER = tempfile.TemporaryDirectory()
os.environ["SHOP_DATABASE"] = f"sqlite:///{FOLDER.name}/test.db"
