"""Own a state and listen: for ever (`serve`), or for the length of one cycle (`cycle`).

The loop and its signals run in the main thread, cycles in a second one, the commands of the socket
in a third; all share one connection, one transaction at a time, so a slow handler blocks nobody.
What was committed through the socket makes the next cycle due early; the cycle's own commits never.
"""

import grp
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from qinglong_edge.actions.manifest import read_manifest
from qinglong_edge.actions.registry import Registry
from qinglong_edge.cli.store import StateOwner
from qinglong_edge.commands.authority import require_or_owner
from qinglong_edge.commands.cycle import Runner
from qinglong_edge.commands.engine import Answer, Caller, Engine
from qinglong_edge.commands.table import TABLE
from qinglong_edge.control import address, owner_record
from qinglong_edge.control.server import ControlServer, Hooks, Settled
from qinglong_edge.control.throttle import LoginThrottle
from qinglong_edge.domain import lifecycle, limits
from qinglong_edge.domain.canonical import JsonObject
from qinglong_edge.domain.errors import (
    Detail,
    InvariantBroken,
    QinglongError,
    RefusedError,
    UnavailableError,
    UsageError,
)
from qinglong_edge.domain.lifecycle import Cursors, End, Outcome, Succeeded, Unsettled
from qinglong_edge.executor.passwords_apart import Apart
from qinglong_edge.ports.evidence import EvidenceProvider
from qinglong_edge.ports.handlers import ActionHandler
from qinglong_edge.runtime import carrier
from qinglong_edge.runtime.poll_host import PollHost

SOCKET = "control.sock"
Log = Callable[..., None]
_GRACE_MS = 1_000  # for the command that runs when the loop has ended
_EARLY = frozenset({"action.approve", "action.dispatch"})
_FOREVER_MS = limits.INTERVAL_MS_MAX


class Enabled:
    """Find handlers behind the manifest as it was read last."""

    def __init__(self, registry: Registry) -> None:
        """Hold the registry that counts now."""
        self.registry = registry

    def find(self, action_type: str) -> ActionHandler | None:
        """Return the handler of an enabled type, or None."""
        return self.registry.find(action_type)

    def provider(self, action_type: str) -> EvidenceProvider | None:
        """Return who looks for evidence of a type, or None."""
        return self.registry.provider(action_type)

    def inspect_deadline_ms(self, action_type: str) -> int:
        """Return how long `inspect` of this type may take."""
        return self.registry.inspect_deadline_ms(action_type)


class Daemon:
    """Hold one owned state behind one loop."""

    def __init__(
        self, owner: StateOwner, engine: Engine, log: Log, options: lifecycle.Options
    ) -> None:
        """Take an engine that was opened for writing; nothing listens or runs yet."""
        self._owner = owner
        self._engine = engine._replace(passwords=Apart())
        self._log = log
        self._enabled = Enabled(engine.registry)
        self._runner = Runner(engine, self._enabled)
        hooks = carrier.Hooks(self._runner.run, self._settled, self._failed)
        self._host = PollHost(options, hooks, engine.clocks, self._reload)
        self._throttle = LoginThrottle(engine.clocks)
        self._broken: InvariantBroken | None = None
        self._is_once = False
        self._server: ControlServer | None = None
        self._listening: address.Listening | None = None

    def listen(self, path: str | None, group: str | None) -> None:
        """Bind the socket, then say in the lock file where it is."""
        state_dir = self._engine.facts.state_dir
        if group is not None and path is None:
            raise UsageError("usage", "--socket-group needs --socket PATH outside the state")
        place = os.path.join(state_dir, SOCKET) if path is None else os.path.abspath(path)
        gid = None if group is None else _gid(group)
        self._listening = address.listen(place, state_dir=state_dir, group=gid, replace=True)
        hooks = Hooks(self._carry, self._request, self._soon)
        clocks = self._engine.clocks
        self._server = ControlServer(self._listening.listener, os.geteuid(), hooks, clocks)
        self._host.attach(self._server)
        known = SOCKET if path is None else place
        owner_record.write(self._owner.descriptor, owner_record.this_process(known, clocks))
        self._log("listening", profile=self._engine.facts.policy.profile.value)

    def forever(self) -> Answer:
        """Run until a signal; raises `UnavailableError` (`drain_timed_out`)."""
        end = self._host.run()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)  # what follows is short, and the last
        idle = self._close()
        self._log("stopped", outcome=end.value)
        if self._broken is not None:
            raise self._broken
        if end is End.TIMED_OUT or not idle:
            raise UnavailableError("drain_timed_out", "what was running has not ended in time")
        return Answer({"outcome": end.value})

    def once(self) -> Answer:
        """Run exactly one cycle and answer it; who asks for another runs it afterwards."""
        self._is_once = True
        ended: list[Outcome | Unsettled] = []

        def settled(outcome: Outcome | Unsettled) -> None:
            ended.append(outcome)
            self._host.stop()

        self._host.request_cycle(settled)
        self._host.run()
        self._close()
        return self._answer_of(ended[0] if ended else Unsettled(began=False))

    def _close(self) -> bool:
        """Stop listening; tell whether no command is still at work."""
        idle = True
        if self._server is not None:
            idle = self._server.close(_GRACE_MS)
        if self._listening is not None:
            self._listening.remove()
            owner_record.clear(self._owner.descriptor)
        return idle

    def _carry(self, command: str, args: JsonObject, caller: Caller, peer_uid: int) -> Answer:
        engine = self._engine._replace(registry=self._enabled.registry)
        if command == "cycle":
            require_or_owner(engine, caller, "project.manage")
            return Answer({})
        entry = TABLE[command]
        if entry.offline:
            raise RefusedError("offline_only", "this is for the owner of the state, without serve")
        if command == "login":
            return self._log_in(engine, caller, args, peer_uid)
        try:
            answer = entry.run(engine, caller, args)
        except InvariantBroken as error:
            self._host.call_soon(partial(self._failed, error))
            raise
        except QinglongError:
            raise
        except Exception as error:  # a bug: the caller gets 70, and here it leaves its name
            kind = type(error).__name__
            self._host.call_soon(lambda: self._log("command_failed", command=command, code=kind))
            raise
        if command in _EARLY:
            self._host.early_tick()
        return answer

    def _log_in(self, engine: Engine, caller: Caller, args: JsonObject, uid: int) -> Answer:
        self._throttle.check(uid)
        try:
            answer = TABLE["login"].run(engine, caller, args)
        except RefusedError as error:
            if error.code == "login_refused":
                self._throttle.failed(uid)
            raise
        self._throttle.passed(uid)
        return answer

    def _request(self, settled: Settled) -> None:
        """Ask for a cycle; after the only one there is none, and the end answers who waits."""
        if not self._is_once:
            self._host.request_cycle(partial(self._tell, settled))

    def _tell(self, settled: Settled, outcome: Outcome | Unsettled) -> None:
        try:
            settled(self._answer_of(outcome))
        except QinglongError as error:
            settled(error)

    def _answer_of(self, outcome: Outcome | Unsettled) -> Answer:
        if isinstance(outcome, Succeeded):
            return self._runner.answer()
        if isinstance(outcome, Unsettled):
            raise UnavailableError("owner_stopping", "the owner of the state is stopping")
        raise outcome.error

    def _soon(self, call: Callable[[], None]) -> None:
        self._host.call_soon(call)

    def _settled(self, _cursors: Cursors) -> None:
        done = self._runner.last
        if done is not None:
            looked = {f"recovery_{name}": n for name, n in done.cycle.recovery.counts.items()}
            counts = {**looked, **done.cycle.dispatch.counts, "settled": done.settled}
            seen = {name: number for name, number in counts.items() if number}
            if seen:
                self._log("cycle", **seen)

    def _failed(self, error: BaseException) -> None:
        code = error.code if isinstance(error, QinglongError) else type(error).__name__
        self._log("failed", code=code)
        if isinstance(error, InvariantBroken):
            self._broken = error  # two parts of this program disagree: no more of it
            self._host.stop()

    def _reload(self) -> None:
        """Read the manifest again; one that cannot be believed leaves the old one standing."""
        try:
            manifest = read_manifest(self._engine.facts.state_dir)
        except QinglongError as error:
            self._log("manifest_refused", code=error.code)
            return
        self._enabled.registry = self._enabled.registry.with_manifest(manifest)
        self._log("manifest_read", enabled=len(manifest.enabled))


def _silent(_event: str, **_fields: Detail) -> None:
    """Say nothing: the answer of a `cycle` tells what it did."""


def one_cycle(owner: StateOwner, engine: Engine) -> Answer:
    """Run one cycle, listening meanwhile where a socket can be had."""
    options = lifecycle.options_of(engine.facts.policy)._replace(
        interval_ms=_FOREVER_MS, initial_delay_ms=_FOREVER_MS, stop_ms=lifecycle.STOP_MS_MAX
    )
    daemon = Daemon(owner, engine, _silent, options)
    with suppress(RefusedError, UnavailableError):
        daemon.listen(None, None)
    return daemon.once()


def serve(owner: StateOwner, engine: Engine, log: Log, args: JsonObject) -> Answer:
    """Serve until a signal ends it; a manifest that cannot be believed is no beginning."""
    if engine.registry.damage is not None:
        raise engine.registry.damage
    daemon = Daemon(owner, engine, log, lifecycle.options_of(engine.facts.policy))
    path, group = args["socket"], args["socket_group"]
    daemon.listen(None if path is None else str(path), None if group is None else str(group))
    return daemon.forever()


def _gid(group: str) -> int:
    try:
        return grp.getgrnam(group).gr_gid
    except KeyError as error:
        raise UsageError("invalid_value", "socket_group: there is no such group") from error
