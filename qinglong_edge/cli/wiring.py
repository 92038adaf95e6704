"""Carry one request to its answer on the state it names; the engine is put together in `store`.

Commands without a state are answered at once; `init` and
`migrate` own the state in their own way; everything else goes through the one table of commands.
"""

import time
from collections.abc import Callable

from qinglong_edge.cli import session_file
from qinglong_edge.cli.request import Request, Surroundings
from qinglong_edge.cli.store import StateOwner
from qinglong_edge.commands import cycle, setup, status
from qinglong_edge.commands.authority import require_or_owner
from qinglong_edge.commands.engine import Answer, Caller
from qinglong_edge.commands.table import TABLE, Access
from qinglong_edge.control import client, owner_record, protocol
from qinglong_edge.domain import limits
from qinglong_edge.domain.canonical import JsonObject
from qinglong_edge.domain.errors import RefusedError, UnavailableError, UsageError
from qinglong_edge.runtime.event_log import EventLog
from qinglong_edge.storage.sqlite import custody

_SETTLED = frozenset({"succeeded", "failed", "blocked", "rejected", "cancelled", "expired"})
_PERSON = frozenset({"pending", "approved", "manual_required"})
_MACHINE = frozenset({"status", "cycle", "verify", "migrate"})
_SESSIONLESS = frozenset({"login", "user.reset"})
_OWN_STATE = frozenset({"init", "migrate", "demo", "serve", "user.reset"})
_GOING = frozenset({"owner_unreachable", "owner_stopping"})
_WAIT_S = 0.2
_TRY_MS = 100  # for the lock, between two looks for an owner that listens
_ANSWER_MS = 60_000  # a verify of a large store is the longest
_open: list[StateOwner] = []


def carry(request: Request, surroundings: Surroundings) -> Answer:
    """Answer one request; a store that was written stays open until the process ends."""
    if request.command == "profile.show":
        return status.show_profile(request.args)
    if request.command == "demo":
        from qinglong_edge.cli.demo import demo  # noqa: PLC0415 - nobody else pays for it

        root = surroundings.environ.get("TMPDIR") or "/tmp"  # noqa: S108 - a name of its own below
        return demo(root, surroundings.entropy)
    options = request.options
    shown = (None, None) if request.command in _SESSIONLESS else _explicit(request)
    if options.socket is not None and request.command != "serve":
        return _through(options.socket, request, surroundings, shown)
    state_dir = session_file.state_path(options, surroundings.environ)
    if request.command == "init":
        around = surroundings
        make = setup.Initialiser(state_dir, around.clocks, around.entropy, around.probe)
        return make.run(request.args)
    custody.become_owner(state_dir)
    caller = _caller(request, surroundings, state_dir, shown)
    if request.command == "serve":
        return _serve(state_dir, request, surroundings, caller)
    if request.command == "action.wait":
        return _wait(
            request, surroundings, lambda asked: _reach(state_dir, asked, surroundings, caller)
        )
    return _reach(state_dir, request, surroundings, caller)


def close_left_open() -> None:
    """Close what earlier requests of this process left open; for callers that live on."""
    while _open:
        _open.pop().close()


def _through(
    path: str, request: Request, surroundings: Surroundings, shown: tuple[str | None, str | None]
) -> Answer:
    """Answer over a socket that was named; no state directory is touched."""
    if request.command in _OWN_STATE:
        raise UsageError("usage", f"{request.command} never goes through a socket")
    caller = _caller(request, surroundings, "", shown)
    if request.command == "action.wait":
        return _wait(request, surroundings, lambda asked: _ask(path, asked, surroundings, caller))
    return _ask(path, request, surroundings, caller)


def _ask(path: str, request: Request, surroundings: Surroundings, caller: Caller) -> Answer:
    asked = protocol.Request(
        request.command, request.args, caller.session_token, caller.agent_token
    )
    deadline_ms = None if request.command == "cycle" else _ANSWER_MS
    while True:
        try:
            return client.ask(path, asked, deadline_ms=deadline_ms, clocks=surroundings.clocks)
        except UnavailableError as error:
            wait_ms = error.details.get("wait_ms")
            if error.code != "login_delayed" or not isinstance(wait_ms, int):
                raise
            time.sleep(wait_ms / 1000)  # the owner waits for nobody: whoever failed does


def _reach(state_dir: str, request: Request, surroundings: Surroundings, caller: Caller) -> Answer:
    """Ask the owner that listens, or own the state for the moment; whichever is possible first.

    An owner that begins or ends to listen meanwhile is no failure: its record is read again, and
    the same line with the same ids goes the other way. The wait for a cycle does not count.
    """
    clocks = surroundings.clocks
    end_ms = clocks.monotonic_ms() + limits.OWNER_WAIT_MS
    while True:
        record = None
        if request.command not in _OWN_STATE:
            record = owner_record.read(state_dir, clocks)
        if record is not None:
            asked_ms = clocks.monotonic_ms()
            try:
                return _ask(record.socket, request, surroundings, caller)
            except UnavailableError as error:
                if request.command == "cycle":
                    end_ms += clocks.monotonic_ms() - asked_ms
                if error.code not in _GOING or clocks.monotonic_ms() >= end_ms:
                    raise
        try:
            return _owned(state_dir, request, surroundings, caller)
        except UnavailableError as error:
            if error.code != "state_busy" or clocks.monotonic_ms() >= end_ms:
                raise


def _owned(state_dir: str, request: Request, surroundings: Surroundings, caller: Caller) -> Answer:
    """Answer as the owner of the state, and close unless something was written."""
    close_left_open()
    owner = StateOwner(state_dir, surroundings, wait_ms=_TRY_MS)
    _open.append(owner)
    if request.command == "migrate":
        answer = setup.migrate(owner.migrating(), surroundings.probe)
        close_left_open()
        return answer
    if request.command == "cycle":
        return _cycle(owner, caller, request.args)
    entry = TABLE[request.command]
    if entry.access is Access.WRITE:
        return entry.run(owner.write(), caller, request.args)
    answer = entry.run(owner.look(), caller, request.args)
    close_left_open()
    return answer


def _cycle(owner: StateOwner, caller: Caller, args: JsonObject) -> Answer:
    """Look first: a cycle with nothing to do writes nothing, and listens nowhere."""
    answer = cycle.idle(owner.look(), caller, args)
    if answer is not None:
        close_left_open()
        return answer
    from qinglong_edge.cli.daemon import one_cycle  # noqa: PLC0415 - only where there is work

    try:
        return one_cycle(owner, owner.write())
    except UnavailableError:
        close_left_open()  # folds the log in while it can: it may have lost its name
        raise


def _serve(state_dir: str, request: Request, surroundings: Surroundings, caller: Caller) -> Answer:
    """Own the state until a signal; a drained one folds its log in."""
    from qinglong_edge.cli.daemon import serve  # noqa: PLC0415 - only the daemon pays for it

    close_left_open()
    try:
        owner = StateOwner(state_dir, surroundings)
    except UnavailableError as error:
        if error.code == "state_busy" and owner_record.read(state_dir, surroundings.clocks):
            raise RefusedError("already_owned", "another process serves this state") from error
        raise
    _open.append(owner)
    engine = owner.write()
    require_or_owner(engine, caller, "project.manage")
    log = EventLog(surroundings.streams.stderr, surroundings.clocks, as_json=request.options.json)
    answer = serve(owner, engine, log, {**request.args, "socket": request.options.socket})
    close_left_open()
    return answer


def _wait(
    request: Request, surroundings: Surroundings, show: Callable[[Request], Answer]
) -> Answer:
    """Look again and again until the action has ended; no owner holds anything meanwhile.

    While another command owns the state (it may be the one that runs the action) the wait goes on.
    """
    left_ms = request.args["timeout_ms"]
    clocks = surroundings.clocks
    end_ms = clocks.monotonic_ms() + (left_ms if isinstance(left_ms, int) else 0)
    asked = request._replace(command="action.show", args={"id": request.args["id"]})
    seen: Answer | None = None
    while True:
        try:
            seen = show(asked)
        except UnavailableError as error:
            if error.code != "state_busy" or clocks.monotonic_ms() >= end_ms:
                raise
        state = None if seen is None else seen.body["effective_state"]
        if seen is not None and state in _SETTLED:
            return seen
        left = end_ms - clocks.monotonic_ms()
        if seen is not None and left <= 0:
            code = status.ATTENTION if state in _PERSON else status.CONVERGING
            return seen._replace(exit_code=code)
        time.sleep(max(0, min(_WAIT_S, left / 1000)))


def _explicit(request: Request) -> tuple[str | None, str | None]:
    """Read the files that the caller named, still as the caller."""
    options = request.options
    session = None
    if options.session is not None:
        session = session_file.read_session(options.session)
        if session is None:
            raise UsageError("session_missing", "there is no session in the file that was named")
    token = None if options.token_file is None else session_file.read_token_file(options.token_file)
    return session, token


def _caller(
    request: Request,
    surroundings: Surroundings,
    state_dir: str,
    shown: tuple[str | None, str | None],
) -> Caller:
    """Gather what the caller shows; a forgotten session file never stops the owner's own timer."""
    session, token = shown
    if session is None and token is None and request.command not in _MACHINE | _SESSIONLESS:
        path = session_file.session_path(request.options, surroundings.environ, state_dir)
        session = session_file.read_session(path)
    return Caller(session, token, is_state_owner=True)
