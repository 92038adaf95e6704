"""The entry of the process: every end of it has an exit code, and no end shows a traceback."""

import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NoReturn, TextIO

from qinglong_edge import __version__
from qinglong_edge.cli import parser
from qinglong_edge.cli.render import Look, render
from qinglong_edge.cli.request import Request, Streams, Surroundings
from qinglong_edge.cli.text import plain
from qinglong_edge.cli.usage import help_text, hint
from qinglong_edge.commands.engine import Answer
from qinglong_edge.domain.canonical import Json, JsonObject
from qinglong_edge.domain.errors import (
    EXIT_BUG,
    QinglongError,
    UnavailableError,
    exit_code_of,
)

if TYPE_CHECKING:
    from qinglong_edge.cli.session_file import StoredSession

EXIT_INTERRUPTED = 130

_PACKAGES = {"sqlite3": "python3-sqlite3", "_sqlite3": "python3-sqlite3"}
_STANDARD_DESCRIPTORS = (0, 1, 2)

Carry = Callable[[Request, Surroundings], Answer]


def main(argv: Sequence[str], surroundings: Surroundings, *, carry: Carry | None = None) -> int:
    """Answer one call and return its exit code; `carry` takes the place of the real wiring."""
    try:
        try:
            request = parser.parse(argv, surroundings)
            answer = _answer(request, surroundings, carry=carry)
            _print_answer(answer, request, surroundings=surroundings)
            return answer.exit_code
        except QinglongError as error:
            failure = error
        except ImportError as error:
            failure = _missing_module(error)
        except Exception as error:  # noqa: BLE001  # the last one who can give it an exit code
            failure = _internal(error)
        as_json = parser.wants_json(argv)
        _print_error(failure, surroundings.streams.stderr, as_json=as_json)
        return exit_code_of(failure)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


def _answer(request: Request, surroundings: Surroundings, *, carry: Carry | None) -> Answer:
    if request.command == parser.VERSION:
        return Answer({"version": __version__})
    if request.command == parser.HELP:
        return Answer({"help": help_text(str(request.args["topic"]))})
    if carry is None:
        from qinglong_edge.cli import wiring  # noqa: PLC0415  # help and wrong calls need no store

        carry = wiring.carry
    if request.command not in {"login", "logout"}:
        return carry(request, surroundings)
    from qinglong_edge.cli import session_file  # noqa: PLC0415  # two commands write it

    environ = surroundings.environ
    state_dir = ""  # a socket that was named touches none
    if request.options.socket is None:
        state_dir = session_file.state_path(request.options, environ)  # as root, if it is root
    path = session_file.session_path(request.options, environ, state_dir)
    answer = carry(request, surroundings)
    if request.command == "logout":
        session_file.remove_session(path)
        return answer
    session = _session(request, answer.body)
    session_file.write_session(path, session, entropy=surroundings.entropy)
    shown = ("subject", "assurance", "authenticated_at_ms", "expires_at_ms")
    return Answer({"session_file": path, **{key: answer.body.get(key) for key in shown}})


def _session(request: Request, body: JsonObject) -> "StoredSession":
    """Return what the session file shall hold; the token goes there and nowhere else."""
    from qinglong_edge.cli.session_file import StoredSession  # noqa: PLC0415  # as above

    expires_at_ms = body.get("expires_at_ms")
    return StoredSession(
        subject=str(body.get("subject")),
        session_token=str(request.args["session_token"]),
        expires_at_ms=expires_at_ms if isinstance(expires_at_ms, int) else 0,
    )


def _print_answer(answer: Answer, request: Request, *, surroundings: Surroundings) -> None:
    """Print the answer; a reader that has gone does not undo what was done."""
    streams = surroundings.streams
    if request.options.json:
        text = json_line(answer.body)
    elif request.command == parser.HELP:
        text = str(answer.body["help"])
    elif request.command == parser.VERSION:
        text = f"{parser.PROGRAM} {answer.body['version']}\n"
    else:
        look = Look(_width(surroundings) if streams.stdout_is_tty else None)
        text = render(request.command, answer.body, look=look)
    try:
        streams.stdout.write(text)
        streams.stdout.flush()
    except BrokenPipeError:
        return
    except (OSError, ValueError) as error:
        failure = UnavailableError(
            "output_failed",
            "the command was carried out, but its answer could not be written",
            {"hint": "look at the state before you repeat the call"},
        )
        failure.retryable = False
        raise failure from error


def json_line(value: Json) -> str:
    """Return one line of JSON in ASCII: no terminal and no locale can change it."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False) + "\n"


def _print_error(error: QinglongError, stderr: TextIO, *, as_json: bool) -> None:
    if as_json:
        text = json_line(
            {
                "error": {
                    "code": error.code,
                    "message": error.message,
                    "retryable": error.retryable,
                    "details": error.details,
                }
            }
        )
    else:
        text = "".join(f"{line}\n" for line in error_lines(error))
    try:
        stderr.write(text)
        stderr.flush()
    except (OSError, ValueError):
        return  # nobody listens; the exit code still tells


def error_lines(error: QinglongError) -> list[str]:
    """Return what a person reads: the message, what is known besides, and the next step."""
    lines = [f"error: {plain(error.message)} [{error.code}]"]
    for name, value in error.details.items():
        if name not in {"hint", "field", "commands", "bytes_max"} and value is not None:
            shown = value if isinstance(value, str) else json.dumps(value)
            lines.append(f"  {plain(name)}: {plain(shown)}")
    step = hint(error)
    return lines if step is None else [*lines, f"hint: {plain(step)}"]


def _missing_module(error: ImportError) -> QinglongError:
    """Name the package that a small system lacks; anything else is a bug."""
    name = (error.name or "").partition(".")[0]
    if not isinstance(error, ModuleNotFoundError) or name in {"", "qinglong_edge"}:
        return _internal(error)
    package = _PACKAGES.get(name, f"python3-{name.strip('_')}")
    missing = UnavailableError(
        "module_missing",
        f"this Python has no module {plain(name)}",
        {"hint": f"install it; on OpenWrt it is in {plain(package)} or python3-light"},
    )
    missing.retryable = False
    return missing


def _internal(error: Exception) -> QinglongError:
    """Say where the bug is, without a word of the error itself: it may hold anything."""
    at = ""
    trace = error.__traceback__
    while trace is not None:
        module = str(trace.tb_frame.f_globals.get("__name__", ""))
        if module.startswith("qinglong_edge"):
            at = f"{module}:{trace.tb_lineno}"
        trace = trace.tb_next
    return QinglongError(
        "internal_error",
        "a bug in this program stopped the command",
        {"type": type(error).__name__, "at": at},
    )


def _width(surroundings: Surroundings) -> int | None:
    """Return the columns of the terminal; nothing is cut where they cannot be told."""
    given = surroundings.environ.get("COLUMNS", "")
    if given.isascii() and given.isdigit() and int(given[:6]) > 0:
        return int(given[:6])
    try:
        return os.get_terminal_size(surroundings.streams.stdout.fileno()).columns or None
    except (OSError, ValueError):
        return None


def run() -> NoReturn:
    """Be the process: answer, flush, and leave without closing an open store (architecture 3.2)."""
    code = EXIT_BUG
    try:
        _hold_standard_descriptors()
        signal.signal(
            signal.SIGCHLD, signal.SIG_DFL
        )  # ignored by some parents: no end is ours then
        streams = _streams()
        as_json = parser.wants_json(sys.argv[1:])
        try:
            code = main(sys.argv[1:], _surroundings(streams))
        except ImportError as error:
            missing = _missing_module(error)
            _print_error(missing, streams.stderr, as_json=as_json)
            code = exit_code_of(missing)
        except Exception as error:  # noqa: BLE001  # as in main
            _print_error(_internal(error), streams.stderr, as_json=as_json)
    except KeyboardInterrupt:
        code = EXIT_INTERRUPTED
    finally:
        os._exit(code)


def _hold_standard_descriptors() -> None:
    """Open what the caller closed: the database must never become descriptor 1 or 2."""
    for descriptor in _STANDARD_DESCRIPTORS:
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number, which is this one


def _streams() -> Streams:
    """Return the standard streams; what is not text in UTF-8 is shown, not refused."""
    stdin, stdout, stderr = _STANDARD_DESCRIPTORS
    return Streams(
        open(stdin, "rb", closefd=False),  # lives as long as the process
        _writer(stdout),
        _writer(stderr),
        os.isatty(stdin),
        os.isatty(stdout),
    )


def _writer(descriptor: int) -> TextIO:
    return open(
        descriptor, "w", encoding="utf-8", errors="backslashreplace", newline="\n", closefd=False
    )


def _surroundings(streams: Streams) -> Surroundings:
    from qinglong_edge.executor.ambient import (  # noqa: PLC0415  # the same
        SystemClocks,
        system_entropy,
    )
    from qinglong_edge.ports.probe import no_probe  # noqa: PLC0415  # the same

    return Surroundings(streams, os.environ, SystemClocks(), system_entropy, no_probe)
