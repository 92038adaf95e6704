"""The five error families, named by what the caller may do next; each has its exit code.

A lost race is a value; a broken rule is an exception. Everything that a correct program meets every
day (not due, already decided, someone else won) is a refusal value of its machine; the commands
turn a refusal into `RefusedError`. Messages hold no secret and no foreign text: the cause stays in
`__cause__`.
"""

from collections.abc import Mapping

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


# What leaves one item as it stands: the store did not take it, or its row cannot be believed.
STORE_FAILED = (UnavailableError, RowDamagedError)


class InvariantBroken(QinglongError):
    """Say that two parts of this program disagree; the transaction was rolled back; stop."""

    def __init__(self, message: str, details: Details | None = None) -> None:
        """Keep what disagreed; the code is always `invariant_broken`."""
        super().__init__("invariant_broken", message, details)


EXIT_BUG = 70
EXITS: Mapping[int, type[QinglongError]] = {
    2: UsageError,
    3: RefusedError,
    4: UnavailableError,
    5: DamagedError,
    EXIT_BUG: QinglongError,
}


def exit_code_of(error: QinglongError) -> int:
    """Return the exit code of an error's family; what belongs to none is a bug."""
    return next(code for code, family in EXITS.items() if isinstance(error, family))
