"""Faults that are put into a copy of the sources, one at a time, to see whether the tests notice: `python -m tests.mutants`."""
