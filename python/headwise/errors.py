"""What can go wrong, as exceptions. Messages are those of the command line: where, what was found, what was expected."""

from __future__ import annotations

__all__ = [
    "HeadwiseError",
    "InvalidInput",
    "NotFound",
    "IoError",
    "OutOfMemory",
    "Unsupported",
    "Cancelled",
    "HeadwiseWarning",
]


class HeadwiseError(Exception):
    """The base of all exceptions that the library raises."""


class InvalidInput(HeadwiseError, ValueError):
    """A file, an argument or a request says something that cannot be."""


class NotFound(HeadwiseError, FileNotFoundError):
    """A file, a tensor or a name that should exist does not."""


class IoError(HeadwiseError, OSError):
    """The operating system refused to read or write."""


class OutOfMemory(HeadwiseError, MemoryError):
    """It would not fit under the limit of KV bytes, or the system has no more memory. Nothing else was lost by it."""


class Unsupported(HeadwiseError, NotImplementedError):
    """Well formed, but this build or this backend cannot do it."""


class Cancelled(HeadwiseError):
    """The work was ended before it was done: its engine was closed, or somebody cancelled it."""


class HeadwiseWarning(UserWarning):
    """What works but may not be what was meant: a plan made on other weights, a text beyond the trained length."""
