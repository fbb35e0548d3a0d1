"""SQLite: the embedded default. One file, one writer at a time, the standard library's driver."""
