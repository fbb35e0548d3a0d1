"""Django finds commands below this package."""
