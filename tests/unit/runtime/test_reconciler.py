"""One page of unknown outcomes: what is asked, what is stored, what is counted (contract 9)."""

import threading
from collections.abc import Callable
from typing import Any

import pytest

from qinglong_edge.domain.action import TASK_PUBLISH, Capability
from qinglong_edge.domain.errors import UnavailableError
from qinglong_edge.domain.evidence import EVIDENCE_EXHAUSTED, Evidence
from qinglong_edge.domain.limits import FINDINGS_MAX
from qinglong_edge.domain.machines import ControlStatus, ExecutionStatus
from qinglong_edge.domain.recovery import Finding, RecoveryRefusal, Source
from qinglong_edge.ports.evidence import EvidenceContext
from tests.contract.adapters import Ports
from tests.contract.recovery_story import (
    MISSING,
    PROOF,
    UNSUPPORTED,
    VERIFIED,
    observe_of,
    person_of,
    scan_of,
    strong,
    unknown,
)
from tests.contract.story import Story, changed, complete_of, renew_of
from tests.unit.runtime.carrying import SHELL, settled
from tests.unit.runtime.looking import Lookout, Provider, lookout, unknown_publish

FAILED = Evidence(Finding.VERIFIED_FAILED, "install_rolled_back", PROOF)
ONE_LOOK = {"scanned": 1, "claimed": 1}


def missing(_context: EvidenceContext) -> Evidence:
    return MISSING


def verified(_context: EvidenceContext) -> Evidence:
    return VERIFIED


@pytest.mark.adr("0033", "2.1")
@pytest.mark.scenario(157)
def test_verified_evidence_settles_the_outcome(story: Story) -> None:
    unknown_publish(story)
    provider = Provider(verified)
    looking = lookout(story, provider)
    assert looking.counts() == {**ONE_LOOK, "verified_succeeded": 1}
    assert looking.recoveries.calls == ["list_due", "claim", "resolve_by_evidence"]
    (context,) = provider.asked
    assert context.idempotency_key == context.dispatch.dispatch_id == "dsp-1"
    assert context.execution.status is ExecutionStatus.EXECUTING
    found = story.record()
    assert found.resolution is not None
    assert (found.resolution.source, found.resolution.evidence_digest) == (
        Source.AUTOMATIC_EVIDENCE,
        PROOF,
    )
    assert (story.status(), story.control().status) == (
        ExecutionStatus.SUCCEEDED,
        ControlStatus.RESOLVED,
    )
    assert story.waits_for_recovery() == []


@pytest.mark.adr("0033", "2.1")
@pytest.mark.adr("0033", "2.2")
@pytest.mark.scenario(157)
def test_a_provider_is_given_values_and_nothing_to_act_with(story: Story) -> None:
    unknown_publish(story)
    provider = Provider(missing)
    lookout(story, provider).page()
    (context,) = provider.asked
    assert context._fields == ("dispatch", "execution", "idempotency_key", "observed_at_ms")
    values = [*context.dispatch, *context.dispatch.action, *context.execution, *context[2:]]
    assert not any(callable(value) for value in values)


def test_verified_failure_settles_as_failed_with_the_providers_code(story: Story) -> None:
    unknown_publish(story)
    assert lookout(story, Provider(lambda _: FAILED)).counts() == {
        **ONE_LOOK,
        "verified_failed": 1,
    }
    assert (story.status(), story.execution().last_result_code) == (
        ExecutionStatus.FAILED,
        "install_rolled_back",
    )


@pytest.mark.adr("0033", "4.1")
@pytest.mark.adr("0033", "5.6")
@pytest.mark.scenario(158, 159)
@pytest.mark.parametrize("providers", [[], [Capability.MANUAL_ONLY]])
def test_where_nobody_can_look_a_person_is_asked_at_once(
    story: Story, providers: list[Capability]
) -> None:
    unknown(story)
    asked = [Provider(verified, SHELL, capability) for capability in providers]
    looking = lookout(story, *asked)
    assert looking.counts() == {**ONE_LOOK, "manual_required": 1}
    assert looking.recoveries.calls == ["list_due", "claim", "observe"]
    assert [each.asked for each in asked] == [[] for _ in asked]
    last = story.control().last
    assert last is not None
    assert (last.finding, last.result_code) == (Finding.UNSUPPORTED, UNSUPPORTED.result_code)
    assert story.status() is ExecutionStatus.EXECUTING
    assert looking.counts() == {}


@pytest.mark.adr("0033", "5.4")
@pytest.mark.adr("0033", "5.6")
@pytest.mark.scenario(160)
@pytest.mark.parametrize(
    ("finding", "counter", "status"),
    [
        (Finding.MISSING, "deferred", ControlStatus.ARMED),
        (Finding.STILL_RUNNING, "deferred", ControlStatus.ARMED),
        (Finding.UNAVAILABLE, "deferred", ControlStatus.ARMED),
        (Finding.CONFLICT, "manual_required", ControlStatus.MANUAL_REQUIRED),
        (Finding.UNSUPPORTED, "manual_required", ControlStatus.MANUAL_REQUIRED),
    ],
)
def test_every_other_finding_leaves_the_outcome_unknown(
    story: Story, finding: Finding, counter: str, status: ControlStatus
) -> None:
    (before,) = unknown_publish(story)
    assert lookout(story, Provider(lambda _: Evidence(finding, "seen"))).counts() == {
        **ONE_LOOK,
        counter: 1,
    }
    control, last = story.control(), story.control().last
    assert before.progress is not None
    assert story.execution() == before.progress.execution
    assert last is not None
    assert (control.status, control.finding_count) == (status, 1)
    assert (last.finding, last.result_code) == (finding, "seen")


def raising(_context: EvidenceContext) -> Evidence:
    raise UnavailableError("store_busy", "no")


def gone(_context: EvidenceContext) -> Evidence:
    raise SystemExit


@pytest.mark.adr("0033", "6.3")
@pytest.mark.scenario(155, 160)
@pytest.mark.parametrize("answer", [raising, gone])
def test_a_look_that_raises_concludes_nothing(
    story: Story, answer: Callable[[EvidenceContext], Evidence]
) -> None:
    unknown_publish(story)
    assert lookout(story, Provider(answer)).counts() == {**ONE_LOOK, "deferred": 1}
    last = story.control().last
    assert last is not None
    assert (last.finding, last.result_code) == (
        Finding.UNAVAILABLE,
        "recovery_evidence_unavailable",
    )
    assert story.waits_for_recovery() == []
    story.clocks.advance(5_000)
    assert story.waits_for_recovery() == ["dsp-1"]


class Extended(Evidence):
    """Say more than an answer may."""


MALFORMED: list[Any] = [
    None,
    True,
    "verified_succeeded",
    (Finding.VERIFIED_SUCCEEDED, "receipt_verified", PROOF),
    {"finding": "verified_succeeded", "result_code": "x", "evidence_digest": PROOF},
    Extended(Finding.VERIFIED_SUCCEEDED, "receipt_verified", PROOF),
    Evidence("verified_succeeded", "receipt_verified", PROOF),  # type: ignore[arg-type]
    Evidence("done", "receipt_verified", PROOF),  # type: ignore[arg-type]
    Evidence(Finding.VERIFIED_SUCCEEDED, "receipt_verified"),
    Evidence(Finding.VERIFIED_FAILED, "receipt_verified", None),
    Evidence(Finding.VERIFIED_SUCCEEDED, "receipt_verified", PROOF.upper()),
    Evidence(Finding.VERIFIED_SUCCEEDED, "receipt_verified", PROOF + "a"),
    Evidence(Finding.VERIFIED_SUCCEEDED, "", PROOF),
    Evidence(Finding.VERIFIED_SUCCEEDED, "two words", PROOF),
    Evidence(Finding.VERIFIED_SUCCEEDED, "x" * 65, PROOF),
    Evidence(Finding.MISSING, None),  # type: ignore[arg-type]
    Evidence(Finding.MISSING, "nothing", 7),  # type: ignore[arg-type]
]


@pytest.mark.scenario(161, 162)
@pytest.mark.parametrize("answer", MALFORMED, ids=range(len(MALFORMED)))
def test_a_malformed_answer_is_a_conflict_and_never_a_verdict(story: Story, answer: object) -> None:
    unknown_publish(story)
    assert lookout(story, Provider(lambda _: answer)).counts() == {
        **ONE_LOOK,
        "manual_required": 1,
    }
    last = story.control().last
    assert last is not None
    assert (last.finding, last.result_code, last.evidence_digest) == (
        Finding.CONFLICT,
        "recovery_evidence_invalid",
        None,
    )
    assert story.status() is ExecutionStatus.EXECUTING


@pytest.mark.adr("0033", "5.4")
@pytest.mark.scenario(164)
def test_looks_come_ever_later_and_the_sixteenth_asks_a_person(story: Story) -> None:
    """W6: 5 s doubling to six hours, and an end."""
    unknown_publish(story)
    looking = lookout(story, Provider(missing))
    waited = []
    for _ in range(1, FINDINGS_MAX):
        assert looking.counts() == {**ONE_LOOK, "deferred": 1}
        at = story.control().next_scan_tick
        assert at is not None
        waited.append((at & (1 << 42) - 1) - story.clocks.boot_ms)
        story.clocks.advance(waited[-1] - 1)
        assert looking.counts() == {}
        story.clocks.advance(1)
    assert waited == [5_000 << n for n in range(13)] + [21_600_000] * 2
    assert looking.counts() == {**ONE_LOOK, "manual_required": 1}
    last = story.control().last
    assert last is not None
    assert (last.finding, last.result_code) == (Finding.MISSING, EVIDENCE_EXHAUSTED)
    assert story.control().finding_count == FINDINGS_MAX


def test_an_overrun_is_unavailable_and_its_type_is_not_looked_at_until_it_returns(
    story: Story,
) -> None:
    """W3: nothing is claimed for a look that cannot begin; other types go on."""
    gate = threading.Event()

    def stuck(_context: EvidenceContext) -> Evidence:
        assert gate.wait(5)
        return VERIFIED

    unknown_publish(story, 1, 2)
    unknown(story, 3)
    looking = lookout(story, Provider(stuck), look_ms=40)
    assert looking.counts() == {"scanned": 3, "claimed": 2, "deferred": 2, "manual_required": 1}
    last = story.control(1).last
    assert last is not None
    assert last.result_code == "recovery_evidence_unavailable"
    assert story.control(2).version == 1  # as the expired lease left it: never claimed
    assert looking.counts() == {"scanned": 1, "deferred": 1}
    gate.set()
    settled()
    assert looking.counts()["claimed"] == 1
    assert story.status(1) is ExecutionStatus.EXECUTING  # its late answer settled nothing


def test_looking_does_not_wait_for_a_handler_of_the_type_that_is_still_out(story: Story) -> None:
    gate = threading.Event()
    unknown_publish(story)
    looking = lookout(story, Provider(verified))
    looking.desk.outstanding.call(
        TASK_PUBLISH, lambda: gate.wait(5), deadline_ms=1, tick_ms=1, on_tick=lambda: None
    )
    assert looking.desk.outstanding.busy(TASK_PUBLISH)
    assert looking.counts() == {**ONE_LOOK, "verified_succeeded": 1}
    gate.set()


def settle_two(story: Story, rival: Ports) -> None:
    person = person_of(2, strong(story.clocks), unprobed=True)
    changed(rival.recoveries.resolve_by_person(person))


def give_up_two(_story: Story, rival: Ports) -> None:
    changed(rival.recoveries.claim(scan_of(2)))
    changed(rival.recoveries.observe(observe_of(2, evidence=UNSUPPORTED)))


def renew_two(_story: Story, rival: Ports) -> None:
    changed(rival.dispatches.renew(renew_of(2, 3)))


def hold_two(_story: Story, rival: Ports) -> None:
    changed(rival.recoveries.claim(scan_of(2, owner="resolver-2")))


def look_at_two(_story: Story, rival: Ports) -> None:
    changed(rival.recoveries.claim(scan_of(2)))
    changed(rival.recoveries.observe(observe_of(2)))


@pytest.mark.scenario(165)
@pytest.mark.parametrize(
    ("meanwhile", "counter"),
    [
        (settle_two, "already_resolved"),
        (give_up_two, "manual_required"),
        (renew_two, "execution_active"),
        (hold_two, "deferred"),
        (look_at_two, "deferred"),
    ],
)
def test_what_became_of_an_item_meanwhile_is_counted_and_the_page_goes_on(
    story: Story, meanwhile: Callable[[Story, Ports], None], counter: str
) -> None:
    rival = story.repositories.second_session()

    def looks(context: EvidenceContext) -> Evidence:
        if context.idempotency_key == "dsp-1":
            meanwhile(story, rival)
        return VERIFIED

    unknown_publish(story, 1, 2, 3)
    provider = Provider(looks)
    counts = lookout(story, provider).counts()
    assert counts == {"scanned": 3, "claimed": 2, "verified_succeeded": 2, counter: 1}
    assert [context.idempotency_key for context in provider.asked] == ["dsp-1", "dsp-3"]


@pytest.mark.scenario(165, 166)
@pytest.mark.parametrize(
    ("call", "claimed"), [("claim", {}), ("resolve_by_evidence", {"claimed": 1})]
)
def test_a_dispatch_that_is_not_there_is_unavailable(
    story: Story, call: str, claimed: dict[str, int]
) -> None:
    unknown_publish(story)
    looking = lookout(story, Provider(verified))
    looking.recoveries.answers[call] = RecoveryRefusal.NOT_FOUND
    assert looking.counts() == {"scanned": 1, **claimed, "unavailable": 1}


@pytest.mark.adr("0033", "6.1")
@pytest.mark.scenario(150, 166)
@pytest.mark.parametrize(
    ("answer", "counter"), [(VERIFIED, "already_resolved"), (MISSING, "deferred")]
)
def test_a_late_completion_that_comes_first_wins(
    story: Story, answer: Evidence, counter: str
) -> None:
    def completes(_context: EvidenceContext) -> Evidence:
        changed(story.ports.dispatches.complete(complete_of(1, 3, result_code="late"))[0])
        return answer

    unknown_publish(story)
    assert lookout(story, Provider(completes)).counts() == {**ONE_LOOK, counter: 1}
    found = story.record()
    assert found.resolution is None
    assert (story.status(), story.execution().last_result_code) == (
        ExecutionStatus.SUCCEEDED,
        "late",
    )


def slow(story: Story, *, then: Lookout, ms: int) -> Provider:
    """Let time pass while looking, and let another resolver work then."""

    def looks(_context: EvidenceContext) -> Evidence:
        story.clocks.advance(ms)
        then.page()
        return VERIFIED

    return Provider(looks)


@pytest.mark.adr("0033", "5.3")
@pytest.mark.scenario(131)
def test_two_resolvers_never_look_at_one_outcome_at_once(story: Story) -> None:
    unknown_publish(story)
    other = Provider(missing)
    second = lookout(story, other, owner="resolver-2")
    first = lookout(story, slow(story, then=second, ms=31_999))
    assert first.counts() == {**ONE_LOOK, "verified_succeeded": 1}
    assert other.asked == []


@pytest.mark.adr("0033", "5.3")
@pytest.mark.scenario(131, 139, 166)
@pytest.mark.parametrize(
    ("answer", "counter"), [(VERIFIED, "already_resolved"), (MISSING, "deferred")]
)
def test_a_resolver_that_was_replaced_settles_nothing(
    story: Story, answer: Evidence, counter: str
) -> None:
    unknown_publish(story)
    other = Provider(lambda _: answer)
    second = lookout(story, other, owner="resolver-2")
    first = lookout(story, slow(story, then=second, ms=32_000))
    assert first.counts() == {**ONE_LOOK, counter: 1}
    assert len(other.asked) == 1
    known = story.record().resolution
    assert (known is not None) is (answer is VERIFIED)
