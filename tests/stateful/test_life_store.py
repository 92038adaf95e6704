"""Four actions live through both stores: two dispatchers, two resolvers, one person, bad luck.

The stores get the same commands under one clock that jumps both ways and reboots; SQLite is closed
and opened again, loses the answers of commits, or does not do them at first. Whoever acts keeps
what it was last answered, and goes on using it when it is stale.
"""

from typing import Any

import pytest

pytest.importorskip("hypothesis")

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from qinglong_edge.domain import dispatch as rules
from qinglong_edge.domain.action import action_digest
from qinglong_edge.domain.effect import Effect, Perform, PublishTask, Whole, plan_of
from qinglong_edge.domain.evidence import (
    ClaimScan,
    Evidence,
    Observe,
    RenewScan,
    ScanFence,
    scan_fence_of,
)
from qinglong_edge.domain.execution import Fence, Outcome, Record, fence_of
from qinglong_edge.domain.identity import Assurance, Principal
from qinglong_edge.domain.machines import TERMINAL
from qinglong_edge.domain.policy import BindRole, PolicyFence, Role, Subject
from qinglong_edge.domain.recovery import Decision, Finding
from qinglong_edge.domain.resolution import ResolveByEvidence, ResolveByPerson
from tests.contract.adapters import Fault
from tests.contract.recovery_story import propose_effect, publish_of, run_of, task_of
from tests.contract.story import consume_of, decide_of, digest_of, propose_of
from tests.stateful.two_stores import TwoStores
from tests.support.builders import ANA, BOB, BOT, EDGE, HOUR_MS, PROJECT
from tests.support.clock import WALL_MS

PROOF = "a" * 64
EFFECTS: dict[int, Effect] = {
    2: publish_of(2),
    3: run_of(3, of=2),
    4: PublishTask(task_of(2, name="Anew")),
}
NUMBERS = st.sampled_from((1, 2, 3, 4))
WHO = st.sampled_from((0, 1))
LEASES_MS = st.sampled_from((1, 30_000, 600_000))
PASSING_MS = st.sampled_from((1, 999, 5_000, 30_000, 600_000, HOUR_MS))
STEPS_MS = st.sampled_from((-10_000_000_000, -HOUR_MS, -1, 600_000, HOUR_MS, 10_000_000_000))
BOOT_WALLS = st.sampled_from((None, 0, WALL_MS - 86_400_000, WALL_MS + 86_400_000))
FAR = ("", "approved", "claimed", "started", "started", "unknown", "unknown")
PICKS = st.integers(0, 11)
SLIPS = st.sampled_from((0, 0, 0, 0, -1, 1))
FOUND = (
    Evidence(Finding.MISSING, "nothing_there"),
    Evidence(Finding.STILL_RUNNING, "still_there", PROOF),
    Evidence(Finding.UNAVAILABLE, "away"),
    Evidence(Finding.UNSUPPORTED, "automatic_recovery_unsupported"),
    Evidence(Finding.CONFLICT, "recovery_evidence_invalid"),
)
VERIFIED = (
    Evidence(Finding.VERIFIED_SUCCEEDED, "receipt_verified", PROOF),
    Evidence(Finding.VERIFIED_FAILED, "receipt_says_failed", PROOF),
)
ROLES = ((ANA, Role.OWNER), (BOB, Role.OWNER), (BOB, None), (BOT, Role.OPERATOR), (BOT, None))


class Life(RuleBasedStateMachine):
    """Hold both stores, and what everybody who acts on them remembers."""

    def __init__(self) -> None:
        super().__init__()
        self.stores = TwoStores(actions=4)
        self.fences: dict[tuple[int, int], Fence] = {}
        self.scans: dict[tuple[int, int], ScanFence] = {}
        self.login: Principal | None = None
        self.drawn = 0

    def teardown(self) -> None:
        try:
            assert self.stores.sqlite.ports.overview.problems() == []
        finally:
            self.stores.close()

    def fresh(self, word: str) -> str:
        self.drawn += 1
        return f"{word}-{self.drawn}"

    def policy(self, subject: Subject) -> PolicyFence:
        project, binding = self.stores.model.ports.policy.resolve(PROJECT, subject)
        assert project is not None
        return PolicyFence(project.version, None if binding is None else binding.version)

    def progress(self, n: int) -> Any:
        record = self.stores.record(n)
        return None if record is None else record.progress

    def remember(self, who: int, n: int) -> None:
        """Let a dispatcher keep the fence of an execution that it holds."""
        held = None if self.progress(n) is None else fence_of(self.progress(n).execution)
        if held is not None and held.owner == f"owner-{who}":
            self.fences[who, n] = held

    def dispatch(self, who: int, n: int, call: Any) -> None:
        self.stores.do(call, session=who)
        self.remember(who, n)

    def scan(self, who: int, n: int, call: Any) -> None:
        self.stores.do(call, session=who)
        held = None if self.progress(n) is None else scan_fence_of(self.progress(n))
        if held is not None and held.owner == f"resolver-{who}":
            self.scans[who, n] = held

    @initialize(far=st.lists(st.sampled_from(FAR),
                             min_size=4, max_size=4))  # fmt: skip
    def some_of_the_way_is_gone(self, far: list[str]) -> None:
        steps = ("approved", "claimed", "started", "unknown")
        for n, word in enumerate(far, start=1):
            for step in steps[: steps.index(word) + 1] if word else ():
                if step == "approved":
                    self.agent_proposes(n)
                    self.person_approves(n)
                elif step == "claimed":
                    self.dispatcher_claims(0, n, 30_000)
                elif step == "started":
                    self.start(0, n, self.begin(n, self.fences[0, n], whole=False))
                else:
                    self.expire(0, n, self.fences[0, n])

    @rule(ms=PASSING_MS)
    def time_passes(self, ms: int) -> None:
        self.stores.clocks.advance(ms)

    @rule(what=st.sampled_from(("jump", "reboot")), ms=STEPS_MS, wall=BOOT_WALLS)
    def clock_misbehaves(self, what: str, *, ms: int, wall: int | None) -> None:
        clocks = self.stores.clocks
        if what == "reboot":
            clocks.reboot(wall)
        else:
            clocks.step_wall(max(ms, -clocks.wall_ms))

    @rule(fault=st.sampled_from((Fault.LOST_ANSWER, Fault.NOT_DONE)))
    def next_commit_goes_wrong(self, fault: Fault) -> None:
        self.stores.fault = fault

    @rule()
    def program_restarts(self) -> None:
        self.stores.restart()

    @rule(bound=st.sampled_from(ROLES))
    def role_changes(self, bound: tuple[Subject, Role | None]) -> None:
        event = BindRole(PROJECT, bound[0], None, bound[1], self.fresh("bind"), EDGE)
        self.stores.do(lambda ports: ports.policy.bind(event))

    @rule()
    def project_changes(self) -> None:
        self.stores.raise_project()

    @rule(n=NUMBERS)
    def agent_proposes(self, n: int) -> None:
        event = propose_effect(n, EFFECTS[n]) if n in EFFECTS else propose_of(n)
        event = event._replace(fence=self.policy(BOT))
        self.stores.do(lambda ports: ports.approvals.propose(event))

    @rule(n=NUMBERS)
    def person_approves(self, n: int) -> None:
        decide = decide_of(n, fence=self.policy(ANA))
        consume = consume_of(n, fence=self.policy(BOT), action_digest=digest(n))
        self.stores.do(lambda ports: ports.approvals.approve_and_consume(decide, consume))

    @rule(who=WHO, n=NUMBERS, lease_ms=LEASES_MS)
    def dispatcher_claims(self, who: int, n: int, lease_ms: int) -> None:
        event = rules.Claim(f"dsp-{n}", f"owner-{who}", self.fresh("token"), lease_ms)
        self.dispatch(who, n, lambda ports: ports.dispatches.claim_page((event,)))

    def fence(self, pick: int, slip: int) -> tuple[int, int, Fence]:
        """Choose among the fences that dispatchers remember; some speakers slip by a version."""
        live = [each for each in self.fences if self.fences[each] == self.fence_now(each[1])]
        who, n = choice(live if pick % 4 else [], sorted(self.fences), pick)
        held = self.fences[who, n]
        return who, n, held._replace(version=max(0, held.version + slip))

    def fence_now(self, n: int) -> Fence | None:
        progress = self.progress(n)
        return None if progress is None else fence_of(progress.execution)

    def unknown(self, pick: int) -> int:
        """Choose an action whose outcome is not known, most of the time."""
        moving = [(n, self.progress(n)) for n in (1, 2, 3, 4)]
        open_ones = [n for n, found in moving if found and found.control and found.execution.lease]
        return int(choice(open_ones if pick % 4 else [], [1, 2, 3, 4], pick))

    def begin(self, n: int, fence: Fence, *, whole: bool) -> rules.Start | Whole:
        start = rules.Start(f"dsp-{n}", f"apr-{n}", digest(n), fence)
        if not whole or n not in EFFECTS:
            return start
        return Whole(start, self.fresh("done"), EFFECTS[n])

    def start(self, who: int, n: int, event: rules.Start | Whole) -> None:
        self.dispatch(who, n, lambda ports: ports.dispatches.start(event))

    def expire(self, who: int, n: int, fence: Fence) -> None:
        event = rules.Expire(f"dsp-{n}", fence)
        self.dispatch(who, n, lambda ports: ports.dispatches.expire(event))

    @precondition(lambda self: bool(self.fences))
    @rule(pick=PICKS, slip=SLIPS, whole=st.booleans())
    def dispatcher_starts(self, pick: int, slip: int, *, whole: bool) -> None:
        who, n, fence = self.fence(pick, slip)
        self.start(who, n, self.begin(n, fence, whole=whole))

    @precondition(lambda self: bool(self.fences))
    @rule(pick=PICKS, slip=SLIPS)
    def handler_has_its_effect(self, pick: int, slip: int) -> None:
        who, n, fence = self.fence(pick, slip)
        event = Perform(f"dsp-{n}", fence, EFFECTS.get(n, EFFECTS[2]))
        self.dispatch(who, n, lambda ports: ports.effects.perform(event))

    @precondition(lambda self: bool(self.fences))
    @rule(pick=PICKS, slip=SLIPS, lease_ms=LEASES_MS)
    def dispatcher_renews(self, pick: int, slip: int, lease_ms: int) -> None:
        who, n, fence = self.fence(pick, slip)
        event = rules.Renew(f"dsp-{n}", fence, lease_ms)
        self.dispatch(who, n, lambda ports: ports.dispatches.renew(event))

    @precondition(lambda self: bool(self.fences))
    @rule(pick=PICKS, slip=SLIPS)
    def dispatcher_gets_no_answer(self, pick: int, slip: int) -> None:
        self.expire(*self.fence(pick, slip))

    @precondition(lambda self: bool(self.fences))
    @rule(pick=PICKS, outcome=st.sampled_from(Outcome), next_one=NUMBERS, whole=st.booleans())
    def handler_answers(self, pick: int, outcome: Outcome, next_one: int, *, whole: bool) -> None:
        who, n, fence = self.fence(pick, 0)
        found = self.stores.sqlite.ports.effects.receipt(f"dsp-{n}")
        if found is not None and found.body is not None:
            outcome = Outcome.SUCCEEDED  # a handler is honest about an effect that it had
        event = rules.Complete(f"dsp-{n}", fence, self.fresh("done"), outcome, "done")
        held = self.fences.get((who, next_one))
        start = None if held is None else self.begin(next_one, held, whole=whole)
        self.dispatch(who, n, lambda ports: ports.dispatches.complete(event, start))
        self.remember(who, next_one)

    @rule(who=WHO)
    def dispatcher_takes_over(self, who: int) -> None:
        self.stores.do(lambda ports: ports.dispatches.settle_dead_owners(f"owner-{who}"))

    @rule(who=WHO, pick=PICKS, lease_ms=LEASES_MS)
    def resolver_claims(self, who: int, pick: int, lease_ms: int) -> None:
        n = self.unknown(pick)
        event = ClaimScan(f"dsp-{n}", f"resolver-{who}", self.fresh("probe"), lease_ms)
        self.scan(who, n, lambda ports: ports.recoveries.claim(event))

    def held(self, pick: int, slip: int) -> tuple[int, int, ScanFence]:
        live = [
            each for each in self.scans if self.scans[each] == scan_fence_of(self.progress(each[1]))
        ]
        who, n = choice(live if pick % 4 else [], sorted(self.scans), pick)
        known = self.scans[who, n]
        return who, n, known._replace(recovery_version=max(0, known.recovery_version + slip))

    @precondition(lambda self: bool(self.scans))
    @rule(pick=PICKS, slip=SLIPS, lease_ms=LEASES_MS)
    def resolver_renews(self, pick: int, slip: int, lease_ms: int) -> None:
        who, n, fence = self.held(pick, slip)
        event = RenewScan(f"dsp-{n}", fence, lease_ms)
        self.scan(who, n, lambda ports: ports.recoveries.renew(event))

    @precondition(lambda self: bool(self.scans))
    @rule(pick=PICKS, slip=SLIPS, evidence=st.sampled_from(FOUND))
    def resolver_observes(self, pick: int, slip: int, evidence: Evidence) -> None:
        who, n, fence = self.held(pick, slip)
        event = Observe(f"dsp-{n}", fence, self.fresh("see"), evidence)
        self.scan(who, n, lambda ports: ports.recoveries.observe(event))

    @precondition(lambda self: bool(self.scans))
    @rule(pick=PICKS, slip=SLIPS, evidence=st.sampled_from(VERIFIED))
    def resolver_settles(self, pick: int, slip: int, evidence: Evidence) -> None:
        who, n, fence = self.held(pick, slip)
        event = ResolveByEvidence(f"dsp-{n}", fence, self.fresh("res"), evidence)
        self.scan(who, n, lambda ports: ports.recoveries.resolve_by_evidence(event))
        self.stores.do(lambda ports: ports.recoveries.resolve_by_evidence(event), session=1 - who)

    @rule(assurance=st.sampled_from((Assurance.MULTI_FACTOR, Assurance.SINGLE_FACTOR)))
    def person_logs_in(self, assurance: Assurance) -> None:
        now = self.stores.model.ports.overview.instant().now
        self.login = Principal(ANA, assurance, self.fresh("ses"), now.at_ms, now.tick)

    @rule(pick=PICKS, decision=st.sampled_from(Decision), slip=SLIPS, stale=st.integers(0, 6),
          unprobed=st.booleans())  # fmt: skip
    def person_settles(
        self, pick: int, decision: Decision, slip: int, *, stale: int, unprobed: bool
    ) -> None:
        n = self.unknown(pick)
        if self.login is None or stale < 5:
            self.person_logs_in(Assurance.MULTI_FACTOR)
        assert self.login is not None
        progress = self.progress(n)
        version = 1 if progress is None else max(1, progress.execution.version + slip)
        fence = PolicyFence(1, 1) if stale == 5 else self.policy(ANA)
        event = ResolveByPerson(
            f"dsp-{n}", version, None, self.fresh("man"), decision, "looked_myself", None,
            self.login, fence, unprobed,
        )  # fmt: skip
        self.stores.do(lambda ports: ports.recoveries.resolve_by_person(event))
        self.stores.do(lambda ports: ports.recoveries.resolve_by_person(event), session=1)

    @invariant()
    def both_stores_hold_the_same_and_no_rule_is_broken(self) -> None:
        self.stores.check()

    @invariant()
    def a_verdict_of_an_effect_has_its_receipt(self) -> None:
        for n in EFFECTS:
            record = self.stores.record(n)
            if record is not None and done(record):
                found = self.stores.sqlite.ports.effects.receipt(f"dsp-{n}")
                assert found is not None
                assert found.body is not None


def choice(wished: list[Any], known: list[Any], pick: int) -> Any:
    """Choose from what is wished for, or else from all that is known."""
    found = wished or known
    return found[pick % len(found)]


def digest(n: int) -> str:
    return action_digest(plan_of(EFFECTS[n], PROJECT)) if n in EFFECTS else digest_of(n)


def done(record: Record) -> bool:
    """Tell whether a store said itself that it had the effect of an action."""
    progress = record.progress
    if progress is None or progress.execution.status not in TERMINAL:
        return False
    return progress.execution.last_result_code in {"task_published", "approved_run_created"}


Life.TestCase.settings = settings(max_examples=max(1, settings().max_examples // 10))
TestLifeOfTwoStores = Life.TestCase
