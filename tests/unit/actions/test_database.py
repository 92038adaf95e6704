"""A receipt proves an effect on this database, and nothing else does (contract 11.6)."""

from typing import Any

import pytest

from qinglong_edge.actions.database import ReceiptEvidence
from qinglong_edge.domain.action import RUN_CREATE, TASK_PUBLISH, Capability
from qinglong_edge.domain.errors import UnavailableError
from qinglong_edge.domain.evidence import Evidence
from qinglong_edge.domain.machines import ExecutionStatus
from qinglong_edge.domain.receipt import WORDS
from qinglong_edge.domain.recovery import Finding, Source
from qinglong_edge.ports.evidence import EvidenceProvider
from tests.contract.adapters import FaultyConnection, SqliteRepositories, spoil
from tests.contract.recovery_story import (
    done_effect,
    evidence_of,
    perform_of,
    publish_of,
    run_of,
    scan_of,
    started_effect,
)
from tests.contract.story import Story, changed, complete_of, expire_of, renew_of
from tests.unit.actions.acting import evidence_context, found, left
from tests.unit.actions.test_run_create_effect import FOREIGN
from tests.unit.runtime.looking import lookout

TYPES = pytest.mark.parametrize("action_type", sorted(WORDS))


def provider(story: Story, action_type: str) -> EvidenceProvider:
    return ReceiptEvidence(action_type, story.ports.effects)


def started(story: Story, action_type: str) -> None:
    """Start action 2, which has not had its effect."""
    done_effect(story, 1, publish_of(1))
    effect = publish_of(2) if action_type == TASK_PUBLISH else run_of(2, of=1)
    started_effect(story, 2, effect)


def acted(story: Story, action_type: str) -> None:
    """Start action 2 and have its effect; its verdict is still to come."""
    started(story, action_type)
    effect = publish_of(2) if action_type == TASK_PUBLISH else run_of(2, of=1)
    story.ports.effects.perform(perform_of(2, effect))


def seen(story: Story, action_type: str, **changes: Any) -> Evidence:
    return provider(story, action_type).inspect(evidence_context(story, 2, **changes))


def conflict(action_type: str) -> Evidence:
    return Evidence(Finding.CONFLICT, WORDS[action_type].conflict)


@TYPES
def test_a_receipt_is_automatic_evidence(story: Story, action_type: str) -> None:
    looks = provider(story, action_type)
    assert (looks.action_type, looks.capability) == (action_type, Capability.AUTOMATIC)


@TYPES
@pytest.mark.adr("0033", "4.3")
@pytest.mark.scenario(193)
def test_an_absence_is_missing_and_a_receipt_is_verified(story: Story, action_type: str) -> None:
    words = WORDS[action_type]
    started(story, action_type)
    assert seen(story, action_type) == Evidence(Finding.MISSING, words.missing)
    effect = publish_of(2) if action_type == TASK_PUBLISH else run_of(2, of=1)
    story.ports.effects.perform(perform_of(2, effect))
    digest = found(story, 2).digest
    assert digest is not None
    assert seen(story, action_type) == Evidence(Finding.VERIFIED_SUCCEEDED, words.verified, digest)


@TYPES
@pytest.mark.scenario(190)
def test_a_renewal_after_the_effect_leaves_it_verified(story: Story, action_type: str) -> None:
    acted(story, action_type)
    changed(story.ports.dispatches.renew(renew_of(2, 2)))
    assert seen(story, action_type).finding is Finding.VERIFIED_SUCCEEDED


@TYPES
@pytest.mark.scenario(194)
def test_a_receipt_of_a_later_version_is_a_conflict(story: Story, action_type: str) -> None:
    acted(story, action_type)
    execution = evidence_context(story, 2).execution
    older = execution._replace(version=execution.version - 1)
    assert seen(story, action_type, execution=older) == conflict(action_type)


MINE = "(SELECT key FROM actions WHERE dispatch_id = 'dsp-2')"
SPOILED = [
    (RUN_CREATE, "DELETE FROM runs"),
    (RUN_CREATE, "DELETE FROM run_attempts"),
    *(
        (RUN_CREATE, f"UPDATE runs SET {column} = 'other'")
        for column in (
            "run_id", "trigger_type", "execution_origin", "execution_owner", "triggered_by",
            "request_id", "idempotency_key", "status",
        )
    ),
    (RUN_CREATE, "UPDATE runs SET project = 9"),
    (RUN_CREATE, "UPDATE run_attempts SET status = 'other'"),
    (TASK_PUBLISH, f"DELETE FROM task_revisions WHERE action = {MINE}"),
    (TASK_PUBLISH, f"UPDATE task_revisions SET body = X'7B7D' WHERE action = {MINE}"),
    (TASK_PUBLISH, f"UPDATE task_revisions SET task_id = 'other' WHERE action = {MINE}"),
    (TASK_PUBLISH, f"UPDATE task_revisions SET number = 7 WHERE action = {MINE}"),
    *((name, f"DELETE FROM action_receipts WHERE action = {MINE}") for name in sorted(WORDS)),
    *(
        (name, f"UPDATE action_receipts SET evidence_digest = zeroblob(32) WHERE action = {MINE}")
        for name in sorted(WORDS)
    ),
    *(
        (name, f"UPDATE action_receipts SET body = X'7B7D' WHERE action = {MINE}")
        for name in sorted(WORDS)
    ),
]  # fmt: skip


@pytest.mark.adr("0033", "3.1")
@pytest.mark.scenario(194, 195)
@pytest.mark.parametrize(("action_type", "statement"), SPOILED)
def test_whatever_does_not_fit_together_is_a_conflict(
    story: Story, sqlite: SqliteRepositories, action_type: str, statement: str
) -> None:
    """Receipt and resource prove each other; one of them alone proves nothing."""
    acted(story, action_type)
    assert seen(story, action_type).finding is Finding.VERIFIED_SUCCEEDED
    spoil(sqlite.path, "PRAGMA foreign_keys = OFF", statement)
    assert seen(story, action_type) == conflict(action_type)


@pytest.mark.scenario(195)
def test_a_foreign_run_under_the_same_key_is_a_conflict(
    story: Story, sqlite: SqliteRepositories
) -> None:
    started(story, RUN_CREATE)
    spoil(sqlite.path, FOREIGN)
    assert seen(story, RUN_CREATE) == conflict(RUN_CREATE)


@TYPES
@pytest.mark.adr("0033", "3.1")
def test_a_context_that_contradicts_itself_is_a_conflict(story: Story, action_type: str) -> None:
    acted(story, action_type)
    context = evidence_context(story, 2)
    other = next(name for name in WORDS if name != action_type)
    unknown = context.dispatch._replace(dispatch_id="dsp-9")
    assert seen(story, action_type, idempotency_key="dsp-1") == conflict(action_type)
    assert provider(story, other).inspect(context) == conflict(other)
    assert seen(story, action_type, dispatch=unknown, idempotency_key="dsp-9") == conflict(
        action_type
    )


@TYPES
def test_a_row_that_cannot_be_believed_is_a_conflict(
    story: Story, sqlite: SqliteRepositories, action_type: str
) -> None:
    """W22: it would not become believable by looking again."""
    acted(story, action_type)
    context = evidence_context(story, 2)
    sqlite.damage("apr-2")
    assert provider(story, action_type).inspect(context) == conflict(action_type)


@TYPES
@pytest.mark.adr("0033", "6.3")
def test_a_storage_that_fails_is_raised_and_concludes_nothing(
    story: Story, sqlite: SqliteRepositories, action_type: str
) -> None:
    acted(story, action_type)
    context = evidence_context(story, 2)
    connection = sqlite.database.connection
    assert isinstance(connection, FaultyConnection)
    connection.fail_in = 0
    with pytest.raises(UnavailableError):
        provider(story, action_type).inspect(context)


@TYPES
@pytest.mark.adr("0033", "2.2")
@pytest.mark.adr("0033", "4.3")
@pytest.mark.scenario(200)
def test_an_effect_without_its_verdict_is_settled_by_its_receipt(
    story: Story, sqlite: SqliteRepositories, action_type: str
) -> None:
    acted(story, action_type)
    effects = left(sqlite)
    story.clocks.reboot()
    counts = lookout(story, provider(story, action_type)).counts()
    assert counts == {"scanned": 1, "claimed": 1, "verified_succeeded": 1}
    known = story.record(2).resolution
    assert known is not None
    assert (known.source, known.reason_code) == (
        Source.AUTOMATIC_EVIDENCE,
        WORDS[action_type].verified,
    )
    assert story.status(2) is ExecutionStatus.SUCCEEDED
    assert left(sqlite) == effects


@TYPES
@pytest.mark.adr("0033", "2.2")
@pytest.mark.scenario(193)
def test_a_barrier_without_its_effect_stays_unknown_and_nothing_is_made_up(
    story: Story, sqlite: SqliteRepositories, action_type: str
) -> None:
    started(story, action_type)
    effects = left(sqlite)
    story.clocks.reboot()
    counts = lookout(story, provider(story, action_type)).counts()
    assert counts == {"scanned": 1, "claimed": 1, "deferred": 1}
    assert story.status(2) is ExecutionStatus.EXECUTING
    assert left(sqlite) == effects
    assert story.due() == []


@TYPES
@pytest.mark.adr("0033", "6.1")
@pytest.mark.scenario(149, 151)
def test_the_late_answer_and_the_receipt_end_it_once(story: Story, action_type: str) -> None:
    acted(story, action_type)
    changed(story.ports.dispatches.expire(expire_of(2)))
    changed(story.ports.recoveries.claim(scan_of(2)))
    proven = seen(story, action_type)
    changed(story.ports.recoveries.resolve_by_evidence(evidence_of(2, 2, evidence=proven)))
    before = story.record(2)
    story.ports.dispatches.complete(complete_of(2, 3))
    assert story.record(2) == before
