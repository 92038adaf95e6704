"""Carry one request to its answer on the state it names; the engine is put together in `store`.

Commands without a state are answered at once; `init` and
`migrate` own the state in their own way; everything else goes through the one table of commands.
"""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from qinglong_edge.cli import session_file
from qinglong_edge.cli.request import Request, Surroundings
from qinglong_edge.cli.store import StateOwner
from qinglong_edge.commands import cycle, setup, status
from qinglong_edge.commands.engine import Answer, Caller
from qinglong_edge.commands.table import TABLE, Access
from qinglong_edge.domain.canonical import JsonObject
from qinglong_edge.domain.errors import InvariantBroken, UnavailableError, UsageError
from qinglong_edge.storage.sqlite import custody

_SETTLED = frozenset({"succeeded", "failed", "blocked", "rejected", "cancelled", "expired"})
_PERSON = frozenset({"pending", "approved", "recovery_required", "manual_required"})
_MACHINE = frozenset({"status", "cycle", "verify", "migrate"})
_WAIT_S = 0.2
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
    if options.socket is not None:
        raise UnavailableError("owner_unreachable", "nobody listens on that socket")
    state_dir = session_file.state_path(options, surroundings.environ)
    if request.command == "init":
        around = surroundings
        make = setup.Initialiser(state_dir, around.clocks, around.entropy, around.probe)
        return make.run(request.args)
    shown = (None, None) if request.command == "login" else _explicit(request)
    custody.become_owner(state_dir)
    caller = _caller(request, surroundings, state_dir, shown)
    if request.command == "action.wait":
        return _wait(state_dir, surroundings, caller, request.args)
    return _owned(
        state_dir, surroundings, lambda owner: _answer(owner, request, surroundings, caller)
    )


def close_left_open() -> None:
    """Close what earlier requests of this process left open; for callers that live on."""
    while _open:
        _open.pop().close()


def _owned(
    state_dir: str, surroundings: Surroundings, work: Callable[[StateOwner], Answer | None]
) -> Answer:
    """Run `work` as the owner of the state, and close unless it wrote."""
    close_left_open()
    owner = StateOwner(state_dir, surroundings)
    _open.append(owner)
    answer = work(owner)
    if answer is None:
        raise InvariantBroken("a command gave no answer")
    return answer


def _answer(
    owner: StateOwner, request: Request, surroundings: Surroundings, caller: Caller
) -> Answer:
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
    """Look first: a cycle with nothing to do writes nothing."""
    answer = cycle.idle(owner.look(), caller, args)
    if answer is not None:
        close_left_open()
        return answer
    try:
        with _stopping() as stopping:
            return cycle.cycle(owner.write(), caller, args, stopping)
    except UnavailableError:
        close_left_open()  # folds the log in while it can: it may have lost its name
        raise


def _wait(state_dir: str, surroundings: Surroundings, caller: Caller, args: JsonObject) -> Answer:
    """Look again and again, owning the state only for each look, until the action has ended.

    While another command owns the state (it may be the one that runs the action) the wait goes on.
    """
    left_ms = args["timeout_ms"]
    clocks = surroundings.clocks
    end_ms = clocks.monotonic_ms() + (left_ms if isinstance(left_ms, int) else 0)
    asked = {"id": args["id"]}
    show = TABLE["action.show"].run
    seen: Answer | None = None
    while True:
        try:
            seen = _owned(state_dir, surroundings, lambda owner: show(owner.look(), caller, asked))
            close_left_open()
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
    if session is None and token is None and request.command not in _MACHINE | {"login"}:
        path = session_file.session_path(request.options, surroundings.environ, state_dir)
        session = session_file.read_session(path)
    return Caller(session, token, is_state_owner=True)


@contextmanager
def _stopping() -> Iterator[Callable[[], bool]]:
    """Turn the signals that end us into a flag: an action that runs is never abandoned by us."""
    seen: list[int] = []

    def note(number: int, _frame: FrameType | None) -> None:
        seen.append(number)

    signals = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    before = [signal.signal(number, note) for number in signals]
    try:
        yield lambda: bool(seen)
    finally:
        for number, handler in zip(signals, before, strict=True):
            signal.signal(number, handler)
    if signal.SIGINT in seen:
        raise KeyboardInterrupt
