"""What an edited file says against itself: nothing starts on it, and `verify` names it."""

import pytest

from qinglong_edge.domain.action import Risk
from qinglong_edge.domain.canonical import sha256_hex
from qinglong_edge.domain.dispatch import DispatchRefusal
from qinglong_edge.domain.errors import RowDamagedError
from qinglong_edge.domain.identity import Assurance, Principal
from qinglong_edge.domain.machines import ExecutionStatus
from tests.contract.adapters import SqliteRepositories, spoil
from tests.contract.recovery_story import (
    done_effect,
    person_of,
    publish_of,
    run_of,
    strong,
    unknown,
)
from tests.contract.story import Story, changed, claim_of, consume_of, decide_of, start_of
from tests.support.builders import ANA, at


@pytest.fixture
def story(sqlite: SqliteRepositories) -> Story:
    return Story(sqlite)


def risky(story: Story, n: int = 1) -> None:
    """Have an action of high risk approved on a second factor, and dispatched."""
    story.proposed(n, risk=Risk.HIGH)
    ana = Principal(ANA, Assurance.MULTI_FACTOR, "ses-1", at(0).at_ms, at(0).tick)
    decide = decide_of(n, principal=ana)
    changed(story.ports.approvals.approve_and_consume(decide, consume_of(n)))


FACTS = [
    ("DELETE FROM authorization_facts", "fact_missing"),
    ("UPDATE authorization_facts SET assurance = 'hardware'", "fact_damaged"),
    ("UPDATE authorization_facts SET fact_digest = zeroblob(32)", "fact_damaged"),
    ("UPDATE actions SET risk = 'medium'", "fact_damaged"),
]


@pytest.mark.adr("0006", "6")
@pytest.mark.parametrize(("statement", "code"), FACTS)
def test_nothing_starts_on_a_decision_whose_proof_is_gone(
    story: Story, sqlite: SqliteRepositories, statement: str, code: str
) -> None:
    risky(story)
    story.claimed_again(1)
    spoil(sqlite.path, statement)
    with pytest.raises(RowDamagedError) as caught:
        story.ports.dispatches.start(start_of(1))
    assert (caught.value.code, story.status()) == (code, ExecutionStatus.LEASED)
    assert {"row": 1, "problem": code} in story.ports.overview.problems()


@pytest.mark.adr("0006", "6")
def test_a_lost_proof_holds_up_nobody_else_in_its_page(
    story: Story, sqlite: SqliteRepositories
) -> None:
    risky(story, 1)
    story.consumed(2)
    spoil(sqlite.path, FACTS[0][0])
    claims, begun = story.ports.dispatches.claim_page((claim_of(1), claim_of(2)), start_of(1))
    assert begun is DispatchRefusal.FENCE_REJECTED
    assert [changed(each).key for each in claims] == [1, 2]
    changed(story.ports.dispatches.start(start_of(2)))
    assert (story.status(1), story.status(2)) == (ExecutionStatus.LEASED, ExecutionStatus.EXECUTING)


def settled(story: Story) -> None:
    unknown(story, 1)
    event = person_of(1, strong(story.clocks))
    changed(story.ports.recoveries.resolve_by_person(event))


SETTLED = [
    ("DELETE FROM resolutions", "resolution_missing"),
    ("UPDATE resolutions SET reason_code = 'other'", "row_damaged"),
    ("DELETE FROM ids WHERE kind = 'resolution'", "id_missing"),
    ("DELETE FROM ids WHERE kind = 'dispatch'", "id_missing"),
    ("UPDATE actions SET dispatch_id = 'dsp-9'", "id_missing"),
]


@pytest.mark.adr("0009", "3")
@pytest.mark.parametrize(("statement", "problem"), SETTLED)
def test_a_settlement_that_lost_a_part_is_named(
    story: Story, sqlite: SqliteRepositories, statement: str, problem: str
) -> None:
    settled(story)
    assert story.ports.overview.problems() == []
    spoil(sqlite.path, statement)
    assert {"row": 1, "problem": problem} in story.ports.overview.problems()


FORGED = b'{"schema_version":1,"task_id":"task-1","name":"Task 1","argv":["/bin/false"]}'
EFFECTS = [
    (
        f"UPDATE task_revisions SET body = X'{FORGED.hex()}', digest = X'{sha256_hex(FORGED)}'",
        {"row": 1, "problem": "task_damaged"},
    ),
    ("UPDATE runs SET task_id = 'task-9'", {"row": 2, "problem": "task_damaged"}),
    ("UPDATE runs SET task_revision = 'r2'", {"row": 2, "problem": "task_damaged"}),
    ("UPDATE runs SET priority = 7", {"row": 2, "problem": "task_damaged"}),
    (
        "UPDATE executions SET status = 'failed' WHERE action = 2",
        {"row": 2, "problem": "receipt_damaged"},
    ),
    ("DELETE FROM run_attempts", {"row": 2, "problem": "receipt_damaged"}),
]


@pytest.mark.adr("0009", "6")
@pytest.mark.parametrize(("statement", "problem"), EFFECTS)
def test_an_effect_that_is_not_what_was_approved_is_named(
    story: Story, sqlite: SqliteRepositories, statement: str, problem: dict[str, object]
) -> None:
    done_effect(story, 1, publish_of(1))
    done_effect(story, 2, run_of(2, of=1))
    assert story.ports.overview.problems() == []
    spoil(sqlite.path, statement)
    assert problem in story.ports.overview.problems()
