"""Rows that somebody changed behind the guards: reported as damage, never taken for absence."""

import pytest

from qinglong_edge.domain.errors import DamagedError
from qinglong_edge.ports.repositories import Listing
from tests.contract.adapters import SqliteRepositories, dump, spoil
from tests.contract.story import Story, claim_of, consume_of, propose_of

DAMAGES = [
    "UPDATE actions SET decided_by = NULL",
    "UPDATE actions SET decision_reason = NULL, decided_at_ms = NULL",
    "UPDATE actions SET state = 'done'",
    "UPDATE actions SET risk = 'none'",
    "UPDATE actions SET requested_by = 'bot'",
    "UPDATE actions SET dispatch_id = NULL, consumption_id = NULL",
    "UPDATE actions SET fence_project_version = NULL",
    "UPDATE executions SET status = 'done'",
    "UPDATE executions SET lease_token = NULL, lease_expires_tick = NULL WHERE status = 'leased'",
    "UPDATE executions SET control_status = 'done'",
    "UPDATE executions SET created_at_ms = created_at_ms - 1",
    "DELETE FROM executions",
]


@pytest.fixture
def story(sqlite: SqliteRepositories) -> Story:
    return Story(sqlite)


@pytest.mark.scenario(54, 68, 69, 70)
@pytest.mark.parametrize("statement", DAMAGES)
def test_a_spoiled_row_is_damage_for_every_reader(
    story: Story, sqlite: SqliteRepositories, statement: str
) -> None:
    story.claimed()
    spoil(sqlite.path, statement)
    before = dump(sqlite.path)
    for call in (
        lambda: story.ports.approvals.find("apr-1"),
        lambda: story.ports.approvals.find("dsp-1"),
        lambda: story.ports.approvals.propose(propose_of(1)),
        lambda: story.ports.approvals.consume(consume_of(1)),
        lambda: story.ports.dispatches.claim_page((claim_of(1),)),
    ):
        with pytest.raises(DamagedError) as raised:
            call()
        assert raised.value.code == "row_damaged"
    page = story.ports.approvals.page(Listing(None, None, 9))
    assert (page.items, page.damaged) == ([], 1)
    assert {"row": 1, "problem": "row_damaged"} in story.ports.overview.problems()
    assert dump(sqlite.path) == before


@pytest.mark.adr("0003", "2")
@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE plans SET body = CAST(replace(body, '/bin/echo', '/bin/true') AS BLOB)",
        "UPDATE plans SET body = X'7B7D'",
        "UPDATE plans SET preview = X'7B7D'",
        "UPDATE actions SET action_digest = zeroblob(32)",
    ],
)
def test_a_plan_that_does_not_match_its_digest_is_damage(
    story: Story, sqlite: SqliteRepositories, statement: str
) -> None:
    story.consumed()
    spoil(sqlite.path, statement)
    with pytest.raises(DamagedError) as raised:
        story.ports.approvals.plan("dsp-1")
    assert raised.value.code == "plan_damaged"
