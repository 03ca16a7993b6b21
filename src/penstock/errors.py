"""Every error a user can meet. Each message is one sentence that names the operator, column or file and the
fix.

Nothing here imports the engine, so that declaration, driver and task code can raise the same classes.
"""

from __future__ import annotations


class PenstockError(Exception):
    """Base of all errors raised by Penstock; catching it catches nothing of Spark's or the user's own."""


class DeclarationError(PenstockError):
    """A topology, schema, key or option is wrong; raised before anything runs."""


class SessionError(PenstockError):
    """The SparkSession cannot carry leases: wrong flavour, stopped, too few slots, or a conflicting
    setting."""


class CheckpointError(PenstockError):
    """A checkpoint cannot be used: other topology, newer format, unsupported scheme, not writable."""


class CorruptFileError(CheckpointError):
    """A file does not hold what a record says it holds; the message names the file. Nothing was
    overwritten."""


class FencedError(PenstockError):
    """Another driver took the checkpoint over; the message names the winner. This query wrote nothing after
    that."""


class StorageError(PenstockError):
    """A durable write failed (full or read-only disk, I/O error); nothing partial was committed."""


class OperatorError(PenstockError):
    """User logic failed or returned rows that do not fit; the message names operator, key and cause."""


class PlanError(PenstockError):
    """A plan cannot be carried out; the message says why. The plan before it goes on."""


class QueryError(PenstockError):
    """A query ended because of an error; ``__cause__`` has it."""
