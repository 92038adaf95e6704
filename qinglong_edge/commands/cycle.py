"""The `cycle` command: one bounded cycle of recovery and dispatch, then the end."""

from collections.abc import Callable

from qinglong_edge.commands.authority import require_or_owner
from qinglong_edge.commands.engine import Answer, Caller, Engine
from qinglong_edge.domain.canonical import Fields, Json, JsonObject
from qinglong_edge.domain.errors import Details, UnavailableError
from qinglong_edge.domain.paging import StopReason
from qinglong_edge.executor.invoke import Outstanding
from qinglong_edge.runtime.dispatcher import COUNTERS, Dispatcher
from qinglong_edge.runtime.execution import Desk
from qinglong_edge.runtime.page_loop import Phase
from qinglong_edge.runtime.supervisor import Cursors, Cycle, Supervisor, recover

CONVERGING = 10


def lease_owner(engine: Engine) -> str:
    """Draw the name under which one process holds leases; never used twice."""
    return f"edge:{engine.entropy(12).hex()}"


def idle(engine: Engine, caller: Caller, args: JsonObject) -> Answer | None:
    """Answer a cycle that has nothing to write from a look; None where there is work.

    The recovery phase is listed all the same, so an unreadable due index is never passed over.
    """
    Fields(args, "cycle").done()
    require_or_owner(engine, caller, "project.manage")
    if engine.overview.work_waits("nobody"):
        return None
    recovery = recover(engine.recoveries, engine.facts.policy, None)
    nothing = Phase(
        dict.fromkeys(COUNTERS, 0), 1, StopReason.COMPLETE, remaining=False, cursor=None
    )
    return _answer(engine, Cycle(recovery, nothing), settled=0)


def cycle(engine: Engine, caller: Caller, args: JsonObject, stopping: Callable[[], bool]) -> Answer:
    """Take over what dead owners left, then run one cycle; `stopping` ends it between items."""
    Fields(args, "cycle").done()
    require_or_owner(engine, caller, "project.manage")
    owner = lease_owner(engine)
    settled = engine.dispatches.settle_dead_owners(owner)
    return _answer(engine, _supervisor(engine, owner).run_cycle(Cursors(), stopping), settled)


def _supervisor(engine: Engine, owner: str) -> Supervisor:
    desk = Desk(
        engine.dispatches,
        Outstanding(engine.clocks),
        engine.clocks,
        engine.entropy,
        engine.probe,
        owner,
    )
    dispatcher = Dispatcher(desk, engine.approvals, engine.registry)
    return Supervisor(engine.recoveries, dispatcher, engine.facts.policy, engine.clocks)


def _answer(engine: Engine, done: Cycle, settled: int) -> Answer:
    """Return the phases; exit 10 only where a later cycle can move something by itself.

    Raises `UnavailableError` (`cycle_incomplete`, with counts) where the storage refused a part:
    what it did not take is left to the next cycle or to recovery.
    """
    if done.dispatch.counts["unavailable"]:
        counts: Details = {name: number for name, number in done.dispatch.counts.items() if number}
        raise UnavailableError("cycle_incomplete", "the storage refused part of the cycle", counts)
    backlog = engine.overview.backlog()
    moves = backlog.due + backlog.waiting + backlog.executing
    nothing = Phase({"scanned": 0}, 0, StopReason.COMPLETE, remaining=False, cursor=None)
    body: dict[str, Json] = {
        "recovery": _phase(done.recovery),
        "dispatch": {**_phase(done.dispatch), "settled": settled},
        "runs": _phase(nothing),
        "retention": _phase(nothing),
    }
    return Answer(body, CONVERGING if moves else 0)


def _phase(phase: Phase) -> dict[str, Json]:
    return {
        "pages": phase.pages,
        **phase.counts,
        "stop_reason": phase.stop_reason.value,
        "remaining": phase.remaining,
    }
