"""The steps of recovery and of actions on this database, numbered like those of `story`.

Action 2 is scanned under probe-2; publishing action 2 publishes the task task-2.
"""

from typing import Any

from qinglong_edge.domain import approval as approvals
from qinglong_edge.domain import dispatch as rules
from qinglong_edge.domain.action import ACTION_TYPES, action_digest, bind, plan_body
from qinglong_edge.domain.effect import CreateRun, Effect, Perform, PublishTask, Whole, plan_of
from qinglong_edge.domain.evidence import ClaimScan, Evidence, Observe, RenewScan, ScanFence
from qinglong_edge.domain.execution import Record
from qinglong_edge.domain.identity import Assurance, Principal
from qinglong_edge.domain.machines import ControlStatus, ExecutionStatus
from qinglong_edge.domain.policy import Subject
from qinglong_edge.domain.receipt import Found, judge
from qinglong_edge.domain.recovery import Decision, Finding
from qinglong_edge.domain.resolution import ResolveByEvidence, ResolveByPerson
from qinglong_edge.domain.run import RunIds, RunPlan
from qinglong_edge.domain.task import Task, parse_task
from qinglong_edge.ports.repositories import RecoveryAnswer
from tests.contract.story import (
    Story,
    changed,
    claim_of,
    consume_of,
    decide_of,
    expire_of,
    fence_of,
    propose_of,
)
from tests.support.builders import ANA, FENCE, LEASE_MS, PREVIEW, PROJECT, at
from tests.support.clock import FakeClocks

RESOLVER = "resolver-1"
MISSING = Evidence(Finding.MISSING, "nothing_there")
UNSUPPORTED = Evidence(Finding.UNSUPPORTED, "automatic_recovery_unsupported")
PROOF = "a" * 64
VERIFIED = Evidence(Finding.VERIFIED_SUCCEEDED, "receipt_verified", PROOF)


def scan_of(n: int, **changes: Any) -> ClaimScan:
    return ClaimScan(f"dsp-{n}", RESOLVER, f"probe-{n}", LEASE_MS)._replace(**changes)


def scan_fence(n: int, recovery_version: int = 1, execution_version: int = 3) -> ScanFence:
    """Return the fence of the first scan of an action that started and then expired."""
    return ScanFence(RESOLVER, f"probe-{n}", execution_version, recovery_version)


def renew_scan_of(n: int, recovery_version: int = 2, **changes: Any) -> RenewScan:
    return RenewScan(f"dsp-{n}", scan_fence(n, recovery_version), LEASE_MS)._replace(**changes)


def observe_of(n: int, recovery_version: int = 2, **changes: Any) -> Observe:
    event = Observe(f"dsp-{n}", scan_fence(n, recovery_version), f"see-{n}", MISSING)
    return event._replace(**changes)


def evidence_of(n: int, recovery_version: int = 2, **changes: Any) -> ResolveByEvidence:
    event = ResolveByEvidence(f"dsp-{n}", scan_fence(n, recovery_version), f"res-{n}", VERIFIED)
    return event._replace(**changes)


def strong(clocks: FakeClocks, who: Subject = ANA, **changes: Any) -> Principal:
    """Return somebody who proved themselves strongly right now."""
    ms = clocks.read().boot_ms - at(0).reading.boot_ms
    now = at(ms, wall_ms=clocks.read().wall_ms)
    return Principal(who, Assurance.MULTI_FACTOR, "ses-1", now.at_ms, now.tick)._replace(**changes)


def person_of(n: int, principal: Principal, **changes: Any) -> ResolveByPerson:
    event = ResolveByPerson(
        f"dsp-{n}", 3, None, f"man-{n}", Decision.ABANDON_UNKNOWN, "looked_myself", None,
        principal, FENCE, unprobed=False,
    )  # fmt: skip
    return event._replace(**changes)


def task_of(n: int, **changes: Any) -> Task:
    raw: dict[str, Any] = {"schema_version": 1, "task_id": f"task-{n}", "name": f"Task {n}"}
    return parse_task({**raw, "argv": ["/bin/true"]}, "task")._replace(**changes)


def publish_of(n: int) -> PublishTask:
    return PublishTask(task_of(n))


def run_of(n: int, of: int, revision: str = "r1") -> CreateRun:
    """Return the run that action `n` makes of the task that action `of` published."""
    plan = RunPlan(f"task-{of}", revision, f"Task {of}", 0)
    return CreateRun(plan, RunIds(f"run-{n}", f"att-{n}", f"ev-{n}-1", f"ev-{n}-2"))


def propose_effect(n: int, effect: Effect) -> approvals.Propose:
    plan = plan_of(effect, PROJECT)
    binding = bind(plan, ACTION_TYPES[plan.action_type].permission, PREVIEW)
    return propose_of(n, action=binding, body=plan_body(plan))


def start_effect(n: int, effect: Effect, version: int = 1) -> rules.Start:
    digest = action_digest(plan_of(effect, PROJECT))
    return rules.Start(f"dsp-{n}", f"apr-{n}", digest, fence_of(n, version))


def whole_of(n: int, effect: Effect, **changes: Any) -> Whole:
    return Whole(start_effect(n, effect), f"done-{n}", effect)._replace(**changes)


def perform_of(n: int, effect: Effect, version: int = 2) -> Perform:
    return Perform(f"dsp-{n}", fence_of(n, version), effect)


def consumed_effect(story: Story, n: int, effect: Effect) -> Record:
    """Propose and approve an action on this database."""
    event = propose_effect(n, effect)
    changed(story.ports.approvals.propose(event))
    consume = consume_of(n, action_digest=event.action.action_digest)
    return changed(story.ports.approvals.approve_and_consume(decide_of(n), consume))


def claimed_effect(story: Story, n: int, effect: Effect) -> Record:
    consumed_effect(story, n, effect)
    return changed(story.ports.dispatches.claim_page((claim_of(n),))[0][0])


def started_effect(story: Story, n: int, effect: Effect) -> Record:
    """Pass the barrier alone: the effect is still to come."""
    claimed_effect(story, n, effect)
    return changed(story.ports.dispatches.start(start_effect(n, effect)))


def done_effect(story: Story, n: int, effect: Effect) -> Record:
    """Have barrier, effect and verdict in one commit."""
    claimed_effect(story, n, effect)
    return changed(story.ports.dispatches.start(whole_of(n, effect)))


def unknown(story: Story, n: int = 1) -> Record:
    """Start an action that then gives no answer: its lease is over at once."""
    story.started(n)
    return changed(story.ports.dispatches.expire(expire_of(n)))


def scanned(story: Story, n: int = 1) -> Record:
    """Hold the scan lease of an action without an answer."""
    unknown(story, n)
    return changed(story.ports.recoveries.claim(scan_of(n)))


def by_person(story: Story, n: int = 1, **changes: Any) -> RecoveryAnswer:
    """Settle on the word of the owner, who proves themselves right now."""
    event = person_of(n, strong(story.clocks), **changes)
    return story.ports.recoveries.resolve_by_person(event)


def ended(story: Story, n: int = 1) -> tuple[ExecutionStatus, ControlStatus]:
    """Return where execution and control stand; they must name the same end."""
    execution, control = story.execution(n), story.control(n)
    assert control.execution_version == execution.version
    assert control.resolution_mutation_id == execution.result_mutation_id
    assert (execution.lease, control.lease, control.next_scan_tick) == (None, None, None)
    return execution.status, control.status


def left(story: Story, n: int) -> Found:
    """Return what an action left in this database."""
    found = story.ports.effects.receipt(f"dsp-{n}")
    assert found is not None
    return found


def judged(story: Story, n: int) -> Evidence:
    """Say what the store proves about an action, as the provider of its type does."""
    dispatch = story.record(n).dispatch
    assert dispatch is not None
    return judge(dispatch, story.execution(n), left(story, n))
