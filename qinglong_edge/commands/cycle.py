"""The `cycle` command: one bounded cycle of recovery and dispatch, then the end."""

from collections.abc import Callable
from typing import NamedTuple, Protocol

from qinglong_edge.commands.authority import require_or_owner
from qinglong_edge.commands.engine import Answer, Caller, Engine
from qinglong_edge.domain.canonical import Fields, Json, JsonObject
from qinglong_edge.domain.errors import Details, InvariantBroken, UnavailableError
from qinglong_edge.domain.lifecycle import Cursors
from qinglong_edge.domain.paging import StopReason
from qinglong_edge.executor.invoke import Outstanding
from qinglong_edge.ports.evidence import Providers
from qinglong_edge.ports.handlers import Handlers
from qinglong_edge.runtime import reconciler
from qinglong_edge.runtime.dispatcher import COUNTERS, Dispatcher
from qinglong_edge.runtime.execution import Desk
from qinglong_edge.runtime.page_loop import Phase
from qinglong_edge.runtime.reconciler import Reconciler
from qinglong_edge.runtime.supervisor import Cycle, Supervisor, next_cursors

CONVERGING = 10


class Reachable(Handlers, Providers, Protocol):
    """Find who executes a type, and who looks for evidence of it."""


def lease_owner(engine: Engine) -> str:
    """Draw the name under which one process holds leases; never used twice."""
    return f"edge:{engine.entropy(12).hex()}"


def idle(engine: Engine, caller: Caller, args: JsonObject) -> Answer | None:
    """Prove the right to a cycle; answer one with nothing to write, None where there is work.

    What is due for recovery is listed all the same, so an unreadable index is never passed over.
    """
    Fields(args, "cycle").done()
    require_or_owner(engine, caller, "project.manage")
    if engine.overview.work_waits("nobody"):
        return None
    engine.recoveries.list_due(None, engine.facts.policy.recovery.page_size)
    recovery, dispatch = _nothing(reconciler.COUNTERS), _nothing(COUNTERS)
    return _answer(engine, Done(Cycle(recovery, dispatch), settled=0))


class Runner:
    """Run one cycle after another for one lease owner, in whatever thread asks."""

    def __init__(self, engine: Engine, handlers: Reachable, *, whole: bool = True) -> None:
        """Draw the owner's name; `handlers` may change what is enabled between two calls.

        Without `whole` an action on this database takes three commits instead of one.
        """
        self._engine = engine
        self._owner = lease_owner(engine)
        desk = Desk(
            engine.dispatches,
            Outstanding(engine.clocks),
            engine.clocks,
            engine.entropy,
            engine.probe,
            self._owner,
        )
        dispatcher = Dispatcher(desk, engine.approvals, handlers, whole=whole)
        policy = engine.facts.policy
        looking = Reconciler(desk, engine.recoveries, handlers)
        self._supervisor = Supervisor(looking, dispatcher, policy, engine.clocks)
        self.last: Done | None = None

    def run(self, cursors: Cursors, stopping: Callable[[], bool]) -> Cursors:
        """Take over what dead owners left, then run one cycle; return where the next goes on."""
        settled = self._engine.dispatches.settle_dead_owners(self._owner)
        self.last = Done(self._supervisor.run_cycle(cursors, stopping), settled)
        return next_cursors(self.last.cycle)

    def answer(self) -> Answer:
        """Return the answer of the command `cycle` for the cycle that ran last."""
        if self.last is None:
            raise InvariantBroken("no cycle has run")
        return _answer(self._engine, self.last)


class Done(NamedTuple):
    """Hold one cycle, and how many rows of dead owners moved before it."""

    cycle: Cycle
    settled: int


def _answer(engine: Engine, ended: Done) -> Answer:
    """Return the phases; exit 10 only where a later cycle can move something by itself.

    Raises `UnavailableError` (`cycle_incomplete`, with counts) where the storage refused a part:
    what it did not take is left to the next cycle or to recovery.
    """
    done, settled = ended
    if done.dispatch.counts["unavailable"] or done.recovery.counts["unavailable"]:
        counts: Details = {name: number for name, number in done.dispatch.counts.items() if number}
        counts["recovery_unavailable"] = done.recovery.counts["unavailable"]
        raise UnavailableError("cycle_incomplete", "the storage refused part of the cycle", counts)
    backlog = engine.overview.backlog()
    moves = backlog.due + backlog.waiting + backlog.executing + backlog.recovery_due
    nothing = _nothing(("scanned",), pages=0)
    body: dict[str, Json] = {
        "recovery": _phase(done.recovery),
        "dispatch": {**_phase(done.dispatch), "settled": settled},
        "runs": _phase(nothing),
        "retention": _phase(nothing),
    }
    return Answer(body, CONVERGING if moves else 0)


def _nothing(counters: tuple[str, ...], *, pages: int = 1) -> Phase:
    """Return a phase that found nothing to do."""
    counts = dict.fromkeys(counters, 0)
    return Phase(counts, pages, StopReason.COMPLETE, remaining=False, cursor=None)


def _phase(phase: Phase) -> dict[str, Json]:
    return {
        "pages": phase.pages,
        **phase.counts,
        "stop_reason": phase.stop_reason.value,
        "remaining": phase.remaining,
    }
