"""Faults on real processes, and the matrix that docs/promises.md shows."""
