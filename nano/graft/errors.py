"""What can go wrong, by exit code."""

from __future__ import annotations


class GraftError(ValueError):
    """A checkpoint, text or plan that cannot be used; says what is wrong and where."""


class GateError(Exception):
    """The instrument ran and its gate failed."""
