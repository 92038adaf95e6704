"""`clock trust`: believe the wall clock at once, on a person's word (architecture 3.1)."""

from qinglong_edge.commands.authority import require
from qinglong_edge.commands.engine import Answer, Caller, Engine
from qinglong_edge.commands.refusals import refused
from qinglong_edge.domain.canonical import Fields, JsonObject
from qinglong_edge.domain.tick import ClockRefusal
from qinglong_edge.ports.repositories import TrustClock


def trust(engine: Engine, caller: Caller, args: JsonObject) -> Answer:
    """Run `clock trust`: {}; a clock that is believed already costs nothing and changes nothing.

    The price is that of waiting: open approvals, actions not started and sessions end, the
    caller's session too. Raises `RefusedError`, for a clock before the build date as well.
    """
    Fields(args, "clock").done()
    authorized = require(engine, caller, "project.manage")
    event = TrustClock(engine.facts.project_id, authorized.principal.subject, authorized.fence)
    answer = engine.clock.trust(event)
    if answer is ClockRefusal.TRUSTED_ALREADY:
        wall_ms = engine.overview.instant().now.reading.wall_ms
        return Answer(_body(wall_ms, settled=False, closed=(0, 0, 0)))
    if answer is ClockRefusal.CERTAINLY_WRONG:
        raise refused(answer, {"hint": "set the clock, by NTP or by hand"})
    if isinstance(answer, ClockRefusal):
        raise refused(answer)
    wall_ms = answer.now.reading.wall_ms
    return Answer(_body(wall_ms, settled=True, closed=answer[:3]))


def _body(wall_ms: int, *, settled: bool, closed: tuple[int, int, int]) -> JsonObject:
    approvals, dispatches, sessions = closed
    return {
        "settled": settled,
        "wall_at_ms": wall_ms,
        "approvals_closed": approvals,
        "dispatches_blocked": dispatches,
        "sessions_ended": sessions,
    }
