"""`shell.exec`: run one command line, once. Nothing proves afterwards what a command did.

So it is manual_only for ever (ADR-0033, 4): an exit code is an answer, the command's own deadline
with its process group proven empty is an answer, and any other end is none: the outcome stays
unknown and a person decides. The plan's timeout runs from the start of `execute`, and its handler's
deadline is later by the time that stopping takes, so its own always comes first.

Not promised: between the look at the plan's files and the start of the program somebody who may
write them can still change them, which is why the preview warns about such files.
"""

import os
import stat
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from qinglong_edge.domain import ids, limits
from qinglong_edge.domain.action import Plan, PlanFile, action_digest, check_path
from qinglong_edge.domain.canonical import Fields, Hash, JsonObject, ordered
from qinglong_edge.domain.command_line import parse_argv, parse_env
from qinglong_edge.domain.errors import UsageError
from qinglong_edge.domain.execution import Dispatch, Outcome
from qinglong_edge.executor import process
from qinglong_edge.executor.logs import ActionLogs
from qinglong_edge.ports.ambient import Clocks
from qinglong_edge.ports.handlers import HandlerAnswer, HandlerContext, Inspection, Readiness

ACTION_TYPE = "shell.exec"

# The system's own directories and no others. /usr/local is where people put things: a program there
# is named by its path, so that the approver sees it.
PATH_DIRECTORIES = ("/usr/sbin", "/usr/bin", "/sbin", "/bin")
DISPATCH_ID_NAME = "QINGLONG_EDGE_DISPATCH_ID"
WARNINGS_MAX = 32

_SHELLS = frozenset({"sh", "ash", "bash", "dash", "hush", "ksh", "mksh", "zsh"})
_WRAPPERS = frozenset({"busybox", "env"})
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_READ_BYTES = 65_536


class NoAnswerError(Exception):
    """Say that nobody knows what the command did; its effects stand, and it is never repeated."""

    def __init__(self, ending: process.End) -> None:
        """Keep how the process ended."""
        super().__init__(f"no answer: {ending!r}")
        self.ending = ending


class ShellParams(NamedTuple):
    """Hold the params of a plan, proven and with their defaults filled in."""

    argv: tuple[str, ...]
    cwd: str
    env: Mapping[str, str]
    timeout_ms: int


class ShellExec:
    """Carry `shell.exec`."""

    def __init__(
        self, logs: ActionLogs, clocks: Clocks, *, times: process.StopTimes = process.STOP_TIMES
    ) -> None:
        """Take where output goes, and the clocks that measure the deadline."""
        self._logs = logs
        self._clocks = clocks
        self._times = times

    @property
    def action_type(self) -> str:
        """Return `shell.exec`."""
        return ACTION_TYPE

    def check(self, plan: Plan) -> None:
        """Prove the exact shape of the plan's params; raises `UsageError`."""
        parse_params(plan)

    def pin(self, plan: Plan, known: Plan | None) -> Plan:  # noqa: ARG002 - nothing to look up
        """Return the plan with every default filled in, so that the same command has one digest."""
        params = parse_params(plan)
        filled: JsonObject = {
            "argv": list(params.argv),
            "cwd": params.cwd,
            "env": {**params.env},
            "timeout_ms": params.timeout_ms,
        }
        return plan._replace(params=filled)

    def preview(self, plan: Plan) -> JsonObject:
        """Return what a person is shown: the same for the same plan, apart from `warnings`."""
        params = parse_params(plan)
        return {
            "action_type": ACTION_TYPE,
            "argv": list(params.argv),
            "cwd": params.cwd,
            "env": ordered(params.env),
            "timeout_ms": params.timeout_ms,
            "files": [{"path": file.path, "sha256": file.sha256} for file in plan.files],
            "warnings": warnings(params),
        }

    def deadline_ms(self, plan: Plan) -> int:
        """Return the plan's timeout and the time that stopping takes."""
        return parse_params(plan).timeout_ms + limits.SHELL_STOP_MS

    def inspect(self, dispatch: Dispatch, plan: Plan) -> Inspection:  # noqa: ARG002 - the port
        """Look whether program, directory and files are there; the content of files is final."""
        process.prepare()
        try:
            params = parse_params(plan)
        except UsageError:
            return Inspection(Readiness.BLOCKED, None, "plan_invalid")
        fault = file_fault(plan.files, expired=_never)
        if fault == "file_digest_mismatch":
            return Inspection(Readiness.BLOCKED, None, fault)
        if fault is None and not os.path.isdir(params.cwd.encode()):
            fault = "cwd_missing"
        if fault is None and find_program(params) is None:
            fault = "program_missing"
        if fault is not None:
            return Inspection(Readiness.RETRY, None, fault)
        return Inspection(Readiness.READY, action_digest(plan), None)

    def effect(self, plan: Plan) -> None:
        """Return None: what a command does is not in this database."""

    def execute(self, context: HandlerContext) -> HandlerAnswer:
        """Run the command; raises `NoAnswerError` where its end says nothing."""
        params = parse_params(context.plan)
        end_ms = self._clocks.monotonic_ms() + params.timeout_ms

        def expired() -> bool:
            return self._clocks.monotonic_ms() >= end_ms

        fault = file_fault(context.plan.files, expired=expired)
        if fault is not None:
            return HandlerAnswer(Outcome.FAILED, fault)
        program = find_program(params)
        if program is None:
            return HandlerAnswer(Outcome.FAILED, "not_started_not_found")
        left_ms = end_ms - self._clocks.monotonic_ms()
        if left_ms <= 0:
            return HandlerAnswer(Outcome.FAILED, "deadline_exceeded")
        dispatch_id = context.dispatch.dispatch_id
        environment = child_environment(dispatch_id, params.env)
        log = self._logs.open(dispatch_id)
        try:
            ending = process.run(
                process.Command(program, params.argv, params.cwd, environment),
                log,
                timeout_ms=left_ms,
                clocks=self._clocks,
                times=self._times,
            )
        finally:
            log.close()
        return answer_of(ending)


def answer_of(ending: process.End) -> HandlerAnswer:
    """Translate the end of the process; raises `NoAnswerError` for what is no answer."""
    match ending:
        case process.Exited(0):
            return HandlerAnswer(Outcome.SUCCEEDED, "exit_0")
        case process.Exited(code):
            return HandlerAnswer(Outcome.FAILED, f"exit_{code}")
        case process.DeadlineExceeded(True):
            return HandlerAnswer(Outcome.FAILED, "deadline_exceeded")
        case process.NotStarted(reason):
            return HandlerAnswer(Outcome.FAILED, f"not_started_{reason}")
        case process.Signalled() | process.DeadlineExceeded() | process.Lost():
            raise NoAnswerError(ending)


def parse_params(plan: Plan) -> ShellParams:
    """Return the params of a plan, proven; raises `UsageError`."""
    fields = Fields(plan.params, "plan.params")
    argv = parse_argv(fields.take("argv"), "plan.params.argv")
    cwd = check_path(fields.maybe("cwd", "/"), "plan.params.cwd")
    env = parse_env(fields.maybe("env", {}), "plan.params.env")
    timeout_ms = ids.check_int(
        fields.maybe("timeout_ms", limits.SHELL_TIMEOUT_MS_DEFAULT),
        "plan.params.timeout_ms",
        least=1,
        most=limits.SHELL_TIMEOUT_MS_MAX,
    )
    fields.done()
    return ShellParams(argv, cwd, env, timeout_ms)


def child_environment(dispatch_id: str, env: Mapping[str, str]) -> dict[str, str]:
    """Return the whole environment of the child; nothing of this program's own is in it."""
    return {
        "PATH": ":".join(PATH_DIRECTORIES),
        "HOME": "/",
        "LANG": "C.UTF-8",
        **env,
        DISPATCH_ID_NAME: dispatch_id,
    }


def find_program(params: ShellParams) -> str | None:
    """Return the path of the program, or None where there is none.

    A name without a slash is looked up in the fixed directories, whatever PATH the plan sets; one
    with a slash counts from `cwd`.
    """
    name = params.argv[0]
    if "/" in name:
        path = os.path.join(params.cwd, name)
        return path if os.path.isfile(path.encode()) else None
    for directory in PATH_DIRECTORIES:
        path = f"{directory}/{name}"
        if os.path.isfile(path.encode()) and os.access(path.encode(), os.X_OK):
            return path
    return None


def file_fault(files: tuple[PlanFile, ...], *, expired: Callable[[], bool]) -> str | None:
    """Return the code of the first file that is not what was approved, or None.

    `file_missing`, `file_unreadable`, `file_digest_mismatch` (a link or no regular file as well),
    or `deadline_exceeded` when `expired` says so between two pieces.
    """
    for file in files:
        path = file.path.encode()
        try:
            # A device may act when it is opened: look first, then open, then look again.
            if not stat.S_ISREG(os.lstat(path).st_mode):
                return "file_digest_mismatch"
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                found = _digest_of(fd, expired)
            finally:
                os.close(fd)
        except (FileNotFoundError, NotADirectoryError):
            return "file_missing"
        except OSError:
            return "file_unreadable"
        if found is None:
            return "deadline_exceeded"
        if found != file.sha256:
            return "file_digest_mismatch"
    return None


def _digest_of(fd: int, expired: Callable[[], bool]) -> str | None:
    running = Hash()
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        return ""
    while data := os.read(fd, _READ_BYTES):
        if expired():
            return None
        running.update(data)
    return running.hexdigest()


def _never() -> bool:
    return False


def warnings(params: ShellParams) -> list[JsonObject]:
    """Return what an approver should think about; at most `WARNINGS_MAX` rows, each once.

    `program_missing`, `shell_command_string`; and for the program and every argument that is an
    absolute path, unless that is a directory or a device: `file_writable_by_others` and
    `directory_writable_by_others`, the latter for any directory on the way to it.
    """
    found: dict[tuple[str, str], None] = {}
    program = find_program(params)
    if program is None:
        found["program_missing", params.argv[0]] = None
    if _runs_command_string(params.argv):
        found["shell_command_string", ""] = None
    named = [program or params.argv[0], *params.argv[1:]]
    for path in named:
        if path.startswith("/"):
            found.update(dict.fromkeys(_loose_places(path)))
    rows: list[JsonObject] = [
        {"code": code, "path": path} if path else {"code": code} for code, path in found
    ]
    if len(rows) > WARNINGS_MAX:
        rows[WARNINGS_MAX - 1 :] = [{"code": "more_warnings"}]
    return rows


def _runs_command_string(argv: tuple[str, ...]) -> bool:
    names = [argument.rpartition("/")[2] for argument in argv]
    first = next((at for at, name in enumerate(names) if name not in _WRAPPERS), 0)
    if names[first] not in _SHELLS:
        return False
    for argument in argv[first + 1 :]:
        if not argument.startswith(("-", "+")):
            return False
        if not argument.startswith(("--", "+")) and "c" in argument:
            return True
    return False


def _loose_places(path: str) -> Iterator[tuple[str, str]]:
    """Yield what others than owner and root may write: the file, and directories on its way."""
    found = _look(path.encode())
    if found is not None and not stat.S_ISREG(found.st_mode):
        return
    real = os.path.realpath(path.encode())
    if found is not None and found.st_mode & _OTHERS_WRITE:
        yield "file_writable_by_others", _shown(real)
    seen = set()
    for start in (os.path.abspath(path.encode()), real):
        directory = os.path.dirname(start)
        while directory not in seen:
            seen.add(directory)
            there = _look(directory)
            if there is not None and there.st_mode & _OTHERS_WRITE:
                yield "directory_writable_by_others", _shown(directory)
            directory = os.path.dirname(directory)


def _look(path: bytes) -> os.stat_result | None:
    try:
        return os.stat(path)
    except OSError:
        return None


def _shown(path: bytes) -> str:
    return path.decode("utf-8", "replace")
