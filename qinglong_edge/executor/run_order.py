"""What the owner orders from a supervisor, and what comes back: values, and their form on the way.

An order holds the command and the token of the run; it travels through a socket that nobody else
has, never through an environment, an argument or a file.
"""

from typing import NamedTuple

from qinglong_edge.domain import ids, limits
from qinglong_edge.domain.canonical import Fields, Json, canonical_bytes, parse_object
from qinglong_edge.domain.errors import UsageError
from qinglong_edge.executor.process import Command
from qinglong_edge.executor.process_identity import HANDLE_BYTES_MAX, RunHandle, parse_handle

ORDER_BYTES_MAX = 98_304  # a task's body of 64 KiB and the frame; one message of a local socket
REPORT_BYTES_MAX = HANDLE_BYTES_MAX + 64  # far below what a pipe takes in one piece
TOKEN_CHARS_MAX = 128
LOG_BYTES_MAX = 2**30
GRACE_MS_MAX = 30_000

_SPAWNED, _REFUSED = "spawned", "refused"


class Order(NamedTuple):
    """Say what to run, as which attempt of which run, and how much of its output to keep."""

    run_id: str
    attempt_id: str
    callback_sequence: int
    token: str
    command: Command
    log_bytes_max: int
    grace_ms: int = limits.SHELL_TERM_GRACE_MS


class RunEnding(NamedTuple):
    """Say how a task ended; exactly one of exit code and signal is there.

    `group_empty` tells that no process of the task's group lives. What left the group is not seen
    without a sub-reaper, which cannot be had here: then `descendants_proven` is False.
    """

    exit_code: int | None
    signal: int | None
    started_at_ms: int
    finished_at_ms: int
    boot_id: str
    truncated_bytes: int
    group_empty: bool
    descendants_proven: bool


class Spawned(NamedTuple):
    """Say that the task runs, and name its processes."""

    handle: RunHandle


class Refused(NamedTuple):
    """Say that no answer came (`unknown`), or that the program certainly did not run."""

    outcome: str
    reason: str


NO_SPAWN, UNKNOWN = "no_spawn", "unknown"


def encode_order(order: Order) -> bytes:
    """Return the message of an order; raises `UsageError` (`too_large`)."""
    command = {**order.command._asdict(), "env": dict(order.command.env)}
    data = canonical_bytes({**order._asdict(), "command": command})
    if len(data) > ORDER_BYTES_MAX:
        raise UsageError("too_large", f"an order: over {ORDER_BYTES_MAX} bytes")
    return data


def decode_order(data: bytes) -> Order:
    """Read the message of an order; raises `UsageError`."""
    fields = Fields(parse_object(data, "order", most=ORDER_BYTES_MAX), "order")
    order = Order(
        ids.check_ident(fields.take("run_id"), "run_id"),
        ids.check_ident(fields.take("attempt_id"), "attempt_id"),
        _count(fields, "callback_sequence", limits.SAFE_INTEGER_MAX),
        ids.check_text(fields.take("token"), "token", most=TOKEN_CHARS_MAX),
        _decode_command(fields.take("command")),
        _count(fields, "log_bytes_max", LOG_BYTES_MAX),
        _count(fields, "grace_ms", GRACE_MS_MAX),
    )
    fields.done()
    return order


def _decode_command(value: Json) -> Command:
    fields = Fields(value, "command")
    program, cwd = (_word(fields.take(name), name) for name in ("program", "cwd"))
    argv, env = fields.take("argv"), fields.take("env")
    fields.done()
    if not isinstance(argv, list) or not isinstance(env, dict):
        raise ids.invalid("command", "must have a list of arguments and an object of variables")
    return Command(
        program,
        tuple(_word(word, "argv") for word in argv),
        cwd,
        {_word(name, "env"): _word(word, "env") for name, word in env.items()},
    )


def _word(value: Json, field: str) -> str:
    """Return what a C string can carry."""
    if not isinstance(value, str) or "\0" in value:
        raise ids.invalid(field, "must be text without NUL")
    return value


def _count(fields: Fields, name: str, most: int) -> int:
    return ids.check_int(fields.take(name), name, least=1, most=most)


def encode_report(report: Spawned | Refused) -> bytes:
    """Return the message of a report."""
    if isinstance(report, Spawned):
        return f"{_SPAWNED} {report.handle.text()}".encode()
    return f"{_REFUSED} {report.outcome} {report.reason}".encode()


def decode_report(data: bytes) -> Spawned | Refused:
    """Read a report; one that is missing or torn tells nothing."""
    word, _, rest = data.decode("ascii", "replace").partition(" ")
    handle = parse_handle(rest) if word == _SPAWNED else None
    if handle is not None:
        return Spawned(handle)
    outcome, _, reason = rest.partition(" ")
    if word == _REFUSED and outcome == NO_SPAWN and reason:
        return Refused(NO_SPAWN, reason)
    return Refused(UNKNOWN, reason if word == _REFUSED and reason else "no_report")
