"""The version of reltask; pyproject.toml says the same, and a test compares them."""

__version__ = "0.2.0"
