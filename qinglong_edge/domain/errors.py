"""The five error families, named by what the caller may do next.

A lost race is a value; a broken rule is an exception. Everything that a correct program meets every
day (not due, already decided, someone else won) is a refusal value of its machine; the commands
turn a refusal into `RefusedError`. Messages hold no secret and no foreign text: the cause stays in
`__cause__`.
"""

Detail = str | int | bool | None
Details = dict[str, "Detail | list[Detail]"]


class QinglongError(Exception):
    """Carry a stable code, a short message and low-sensitivity details."""

    retryable = False

    def __init__(self, code: str, message: str, details: Details | None = None) -> None:
        """Keep `code` (snake_case, stable), `message` (for people) and `details` (for programs)."""
        super().__init__(message)
        self.code = code
        self.message = message
        self.details: Details = details or {}


class UsageError(QinglongError):
    """Say that the call is wrong; nothing changed; fix the call."""


class RefusedError(QinglongError):
    """Say that a rule forbids it; nothing changed; do something else."""


class UnavailableError(QinglongError):
    """Say that the environment failed; nothing changed; wait and repeat the same call."""

    retryable = True


class CommitUnknownError(UnavailableError):
    """Say that a commit's answer was lost even after repeats; the state is one of two, not known.

    Repeating the identical command (same mutation id) tells which one.
    """


class DamagedError(QinglongError):
    """Say that stored data cannot be believed; nothing changed; call a person."""


class RowDamagedError(DamagedError):
    """Say that one row cannot be believed; it stays closed, and the others go on."""


class InvariantBroken(QinglongError):
    """Say that two parts of this program disagree; the transaction was rolled back; stop."""

    def __init__(self, message: str, details: Details | None = None) -> None:
        """Keep what disagreed; the code is always `invariant_broken`."""
        super().__init__("invariant_broken", message, details)
