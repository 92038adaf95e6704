"""One approval lives through the pure domain: two owners, bad clocks, lost answers, interruptions.

The machine plays the store: it holds one row, decides with the domain's functions, and stores what
they answer. Every change is sent a second time at once, as after a lost answer; the second must not
change anything. Owners keep the fence of their last success and go on using it when it is stale.
"""

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("hypothesis")

from hypothesis import assume
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from qinglong_edge.domain import approval as approvals
from qinglong_edge.domain import dispatch as dispatches
from qinglong_edge.domain.decisions import Changed
from qinglong_edge.domain.execution import (
    Fence,
    Outcome,
    Progress,
    baseline,
    dispatch_of,
    fence_of,
)
from qinglong_edge.domain.machines import (
    NOT_STARTED,
    OPEN_APPROVALS,
    TERMINAL,
    ApprovalState,
    ControlStatus,
    ExecutionStatus,
)
from qinglong_edge.domain.tick import Now, Trust
from tests.support.builders import (
    FENCE,
    cancel_command,
    consume_command,
    decide_command,
    propose_command,
    start_command,
)
from tests.support.clock import WALL_MS, FakeClocks, StoredTime
from tests.support.entropy import CounterEntropy

OWNERS = st.sampled_from(("first", "second"))
PASSING_MS = st.sampled_from((1, 999, 30_000, 120_000, 600_000, 3_600_000))
STEPS_MS = st.sampled_from((-10_000_000_000, -3_600_000, -1, 600_000, 3_600_000, 10_000_000_000))
BOOT_WALLS = st.sampled_from((None, 0, WALL_MS - 86_400_000, WALL_MS + 86_400_000))
LEASES_MS = st.sampled_from((1, 30_000, 600_000))
LIFETIME_MS = 86_400_000
FINAL_APPROVALS = frozenset(ApprovalState) - OPEN_APPROVALS - {ApprovalState.CONSUMED}


class Life(RuleBasedStateMachine):
    """Hold one action and the machine it lives on."""

    def __init__(self) -> None:
        super().__init__()
        self.clocks = FakeClocks()
        self.time = StoredTime(self.clocks)
        self.entropy = CounterEntropy()
        self.policy = FENCE
        self.fences: dict[str, Fence] = {}
        self.barrier_passes = 0
        self.mutations = 0
        asked = propose_command(lifetime_ms=LIFETIME_MS)
        born = approvals.propose(asked, approvals.Openness(0, 0), frozenset(), self.time.now())
        assert type(born) is Changed
        self.approval = born.after
        self.progress: Progress | None = None

    def fresh(self, word: str) -> str:
        self.mutations += 1
        return f"{word}-{self.mutations}"

    def change_approval(self, ask: Callable[[approvals.Approval, Now], object]) -> bool:
        """Store what an event answers, prove its repeat harmless, and tell whether it changed."""
        now = self.time.now()
        answer: Any = ask(self.approval, now)
        if type(answer) is not Changed:
            return False
        before, after = self.approval, answer.after
        assert type(ask(after, now)) is not Changed
        assert before.state not in FINAL_APPROVALS
        if before.state is not ApprovalState.CONSUMED:
            assert after.version == before.version + 1
        self.approval = after
        self.time.commit(now)
        return True

    def change_progress(self, ask: Callable[[Progress, Now], object]) -> bool:
        """Do the same for the moving half; without one, nothing happens."""
        if self.progress is None:
            return False
        now = self.time.now()
        answer: Any = ask(self.progress, now)
        if type(answer) is not Changed:
            return False
        assert type(ask(answer.after, now)) is not Changed
        self.store(answer.after)
        self.time.commit(now)
        return True

    def store(self, after: Progress) -> None:
        """Replace the moving half, after comparing the two values."""
        before = self.progress
        assert before is not None
        was, run = before.execution, after.execution
        assert was.status not in TERMINAL
        assert run.version == was.version + 1
        assert run.updated_at_ms >= was.updated_at_ms
        assert run.created_at_ms == was.created_at_ms
        if was.status is ExecutionStatus.EXECUTING:
            assert run.started_at_ms == was.started_at_ms
            assert run.status is ExecutionStatus.EXECUTING or run.status in TERMINAL
        elif run.status is ExecutionStatus.EXECUTING:
            self.barrier_passes += 1
        if before.control is not None:
            assert after.control is not None
            assert after.control.version == before.control.version + 1
            assert after.control.updated_at_ms >= before.control.updated_at_ms
        self.progress = after

    def remember(self, owner: str) -> None:
        """Let the owner of a change keep the fence that it was answered."""
        assert self.progress is not None
        held = fence_of(self.progress.execution)
        if held is None:
            self.fences.pop(owner, None)
        else:
            self.fences[owner] = held

    @initialize(far=st.sampled_from(("proposed", "approved", "consumed", "claimed", "started")))
    def some_of_the_way_is_gone(self, far: str) -> None:
        steps: dict[str, Callable[[], None]] = {
            "approved": lambda: self.person_decides(approved=True),
            "consumed": self.approval_is_spent,
            "claimed": lambda: self.owner_claims("first", 30_000),
            "started": lambda: self.owner_starts("first"),
        }
        for name, step in steps.items():
            if far == "proposed":
                return
            step()
            if far == name:
                return

    @rule(ms=PASSING_MS)
    def time_passes(self, ms: int) -> None:
        self.clocks.advance(ms)

    @rule(what=st.sampled_from(("jump", "reboot", "loses authority")), ms=STEPS_MS, wall=BOOT_WALLS)
    def world_misbehaves(self, what: str, *, ms: int, wall: int | None) -> None:
        if what == "reboot":
            self.clocks.reboot(wall)
        elif what == "jump":
            self.clocks.step_wall(max(ms, -self.clocks.wall_ms))
        else:
            self.policy = self.policy._replace(project_version=self.policy.project_version + 1)

    @precondition(lambda self: self.time.now().trust is not Trust.TRUSTED)
    @rule(ms=st.sampled_from((60_000, 600_000)))
    def bad_clock_is_seen(self, ms: int) -> None:
        self.time.commit(self.time.now())
        self.clocks.advance(ms)

    @precondition(lambda self: self.time.now().trust is Trust.SETTLED)
    @rule()
    def clock_settles(self) -> None:
        now = self.time.now()
        if self.approval.state in OPEN_APPROVALS:
            self.approval = approvals.void(self.approval)
        if self.progress is not None and self.progress.execution.status in NOT_STARTED:
            self.store(dispatches.void(self.progress, dispatches.START_DEADLINE_PASSED, now))
        self.time.settle(now)
        assert self.time.now().trust is Trust.TRUSTED

    @precondition(lambda self: self.progress is None)
    @rule(approved=st.sampled_from((True, True, True, False)))
    def person_decides(self, *, approved: bool) -> None:
        event = decide_command(decision_id=self.fresh("dec"), approved=approved)
        self.change_approval(lambda before, now: approvals.decide(before, event, now))

    @precondition(lambda self: self.progress is None)
    @rule()
    def approval_is_spent(self) -> None:
        event = consume_command(consumption_id=self.fresh("con"), fence=self.policy)
        if self.change_approval(lambda before, now: approvals.consume(before, event, now)):
            assert self.progress is None
            born = dispatch_of(self.approval)
            assert born is not None
            self.progress = baseline(born, self.time.now())

    @rule()
    def person_withdraws(self) -> None:
        event = cancel_command(cancel_id=self.fresh("can"))
        if self.progress is None:
            self.change_approval(lambda before, now: approvals.cancel(before, event, now))
        elif self.change_progress(
            lambda before, now: dispatches.cancel(before, event.cancel_id, now)
        ):
            self.change_approval(lambda before, now: approvals.cancel(before, event, now))
            assert self.approval.version == 3

    @precondition(lambda self: self.progress is not None)
    @rule(owner=OWNERS, lease_ms=LEASES_MS)
    def owner_claims(self, owner: str, lease_ms: int) -> None:
        born = dispatch_of(self.approval)
        assume(born is not None)
        assert born is not None
        token = f"t{self.entropy(4).hex()}"
        event = dispatches.Claim("dsp-1", "edge", token, lease_ms)
        if self.change_progress(lambda before, now: dispatches.claim(born, before, event, now)):
            self.remember(owner)

    @precondition(lambda self: bool(self.fences))
    @rule(owner=OWNERS)
    def owner_starts(self, owner: str) -> None:
        born = dispatch_of(self.approval)
        assume(born is not None and owner in self.fences)
        assert born is not None
        event = start_command(fence=self.fences[owner])
        policy = self.policy
        passes = self.barrier_passes
        if self.change_progress(
            lambda before, now: dispatches.start(born, before, event, now, policy=policy)
        ):
            self.remember(owner)
            if self.barrier_passes > passes:
                assert self.time.now().at_ms < born.start_deadline_ms
                assert policy == born.fence

    @precondition(lambda self: bool(self.fences))
    @rule(owner=OWNERS, lease_ms=LEASES_MS)
    def owner_renews(self, owner: str, lease_ms: int) -> None:
        assume(owner in self.fences)
        event = dispatches.Renew("dsp-1", self.fences[owner], lease_ms)
        if self.change_progress(lambda before, now: dispatches.renew(before, event, now)):
            self.remember(owner)

    @precondition(lambda self: bool(self.fences))
    @rule(owner=OWNERS, retry=st.sampled_from((None, 1_000)), spend=st.booleans())
    def owner_releases(self, owner: str, retry: int | None, *, spend: bool) -> None:
        assume(owner in self.fences)
        event = dispatches.Release(
            "dsp-1", self.fences[owner], self.fresh("rel"), "busy", retry, spend=spend
        )
        if self.change_progress(lambda before, now: dispatches.release(before, event, now)):
            self.remember(owner)

    @precondition(lambda self: bool(self.fences))
    @rule(owner=OWNERS)
    def owner_puts_back(self, owner: str) -> None:
        assume(owner in self.fences)
        event = dispatches.PutBack("dsp-1", self.fences[owner])
        if self.change_progress(lambda before, now: dispatches.put_back(before, event, now)):
            self.remember(owner)

    @precondition(lambda self: bool(self.fences))
    @rule(owner=OWNERS)
    def owner_gets_no_answer(self, owner: str) -> None:
        assume(owner in self.fences)
        event = dispatches.Expire("dsp-1", self.fences[owner])
        if self.change_progress(lambda before, now: dispatches.expire(before, event, now)):
            self.remember(owner)

    @precondition(lambda self: bool(self.fences))
    @rule(owner=OWNERS, outcome=st.sampled_from(Outcome))
    def owner_completes(self, owner: str, outcome: Outcome) -> None:
        assume(owner in self.fences)
        event = dispatches.Complete(
            "dsp-1", self.fences[owner], self.fresh("done"), outcome, "done"
        )
        if self.change_progress(lambda before, now: dispatches.complete(before, event, now)):
            self.remember(owner)

    @invariant()
    def at_most_one_passage_of_the_barrier(self) -> None:
        assert self.barrier_passes <= 1
        started = self.progress is not None and self.progress.execution.started_at_ms is not None
        assert started == (self.barrier_passes == 1)

    @invariant()
    def no_two_owners_hold_an_equal_fence(self) -> None:
        assert len(set(self.fences.values())) == len(self.fences)

    @invariant()
    def control_is_closed_if_and_only_if_terminal(self) -> None:
        if self.progress is None:
            return
        run, watch = self.progress
        if run.started_at_ms is None:
            assert watch is None
            return
        assert watch is not None
        assert (watch.status is ControlStatus.RESOLVED) == (run.status in TERMINAL)
        assert watch.execution_version == run.version
        closed_by = run.result_mutation_id if run.status in TERMINAL else None
        assert watch.resolution_mutation_id == closed_by

    @invariant()
    def the_execution_is_a_legal_tuple(self) -> None:
        if self.progress is None:
            return
        run = self.progress.execution
        assert 0 <= run.attempt_count <= run.max_attempts
        holds = {ExecutionStatus.LEASED, ExecutionStatus.EXECUTING}
        assert (run.lease is not None) == (run.status in holds)
        assert (run.eligible_tick is not None) == (run.status in NOT_STARTED)
        assert (run.completed_at_ms is not None) == (run.status in TERMINAL)
        if run.lease is not None:
            assert 0 <= run.lease.expires_tick - run.lease.from_tick <= 600_000
        if run.status is ExecutionStatus.RETRY_WAIT:
            assert run.attempt_count < run.max_attempts

    @invariant()
    def stamps_stand_in_their_order(self) -> None:
        row = self.approval
        stamps = [row.requested_at_ms]
        if row.decision is not None:
            stamps.append(row.decision.decided_at_ms)
        if row.consumption is not None:
            stamps.append(row.consumption.consumed_at_ms)
        assert stamps == sorted(stamps)
        assert stamps[-1] < row.expires_at_ms
        if self.progress is not None:
            run = self.progress.execution
            moments = (run.created_at_ms, run.started_at_ms, run.completed_at_ms)
            known = [moment for moment in moments if moment is not None]
            assert known == sorted(known)
            assert known[-1] <= run.updated_at_ms


TestLife = Life.TestCase
