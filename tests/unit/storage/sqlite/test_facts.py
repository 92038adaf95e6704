"""Authorization facts: beside every approval that needs one, and never elsewhere."""

import sqlite3

import pytest

from qinglong_edge.domain.action import Risk
from qinglong_edge.domain.approval import ApprovalRefusal, Decide
from qinglong_edge.domain.decisions import Changed, Replayed
from qinglong_edge.domain.identity import Assurance, Principal
from qinglong_edge.domain.policy import Role
from tests.support.builders import (
    ANA,
    FENCE,
    action_binding,
    consume_command,
    decide_command,
    propose_command,
)
from tests.support.clock import WALL_MS, FakeClocks
from tests.support.store import add_agent, add_user, make_engine, open_store

LIMIT_MS = 300_000


class Place:
    """One store with a high-risk request of the agent, and its clocks."""

    def __init__(self, risk: Risk = Risk.HIGH) -> None:
        self.clocks = FakeClocks()
        self.database = open_store(":memory:", self.clocks)
        self.engine = make_engine(self.database, self.clocks)
        add_user(self.engine, "ana", Role.OWNER)
        add_agent(self.engine, "bot", Role.OPERATOR)
        asked = propose_command(risk=risk)
        assert isinstance(self.engine.approvals.propose(asked), Changed)

    def decision(self, assurance: Assurance = Assurance.MULTI_FACTOR) -> Decide:
        now = self.engine.overview.instant().now
        principal = Principal(ANA, assurance, "ses-1", now.at_ms, now.tick)
        return decide_command(principal=principal, fence=FENCE)

    def facts(self) -> list[sqlite3.Row]:
        found = self.database.connection.execute("SELECT * FROM authorization_facts")
        return found.fetchall()

    def spoil(self, *statements: str) -> None:
        """Change rows behind the guards of the schema."""
        connection = self.database.connection
        names = connection.execute("SELECT name FROM sqlite_schema WHERE type = 'trigger'")
        for (name,) in names.fetchall():
            connection.execute(f"DROP TRIGGER {name}")
        for statement in statements:
            connection.execute(statement)


@pytest.mark.adr("0006", "11")
@pytest.mark.parametrize("risk", [Risk.HIGH, Risk.CRITICAL])
@pytest.mark.parametrize("held", [False, True])
def test_a_strong_approval_stores_its_fact_in_its_own_commit(risk: Risk, *, held: bool) -> None:
    place = Place(risk)
    commits = place.database.commits
    if held:
        answer = place.engine.approvals.decide(place.decision())
    else:
        answer = place.engine.approvals.approve_and_consume(place.decision(), consume_command())
    assert isinstance(answer, Changed)
    assert place.database.commits == commits + 1
    (row,) = place.facts()
    assert (row["kind"], row["mutation_id"], row["authorized_by"]) == (
        "decision", "dec-1", "user:ana",
    )  # fmt: skip
    assert (row["authentication_id"], row["assurance"]) == ("ses-1", "multi_factor")
    assert (row["project_version"], row["binding_version"]) == (1, 1)
    assert (row["authenticated_at_ms"], row["authorized_at_ms"]) == (WALL_MS, WALL_MS)
    assert place.engine.overview.problems() == []


@pytest.mark.adr("0006", "6")
@pytest.mark.parametrize(
    ("waited_ms", "reason"), [(LIMIT_MS, None), (LIMIT_MS + 1, ApprovalRefusal.STRONG_REQUIRED)]
)
def test_five_minutes_are_judged_by_the_clock_of_the_commit(
    waited_ms: int, reason: ApprovalRefusal | None
) -> None:
    place = Place()
    event = place.decision()
    place.clocks.advance(waited_ms)
    answer = place.engine.approvals.decide(event)
    assert answer is reason if reason else isinstance(answer, Changed)
    assert len(place.facts()) == (reason is None)


@pytest.mark.parametrize("step_ms", [-240_000, 400_000])
def test_a_wall_that_moves_makes_no_proof_younger(step_ms: int) -> None:
    """Forward it counts as age; backward the ticks still tell how long ago it was."""
    place = Place()
    event = place.decision()
    place.clocks.advance(100_000 if step_ms > 0 else LIMIT_MS + 1)
    place.clocks.step_wall(step_ms)
    assert place.engine.approvals.decide(event) is ApprovalRefusal.STRONG_REQUIRED


def test_a_proof_of_the_boot_before_is_none() -> None:
    place = Place()
    event = place.decision()
    place.clocks.reboot()
    assert place.engine.approvals.decide(event) is ApprovalRefusal.STRONG_REQUIRED


def test_one_factor_and_lower_risk_leave_no_fact() -> None:
    place = Place()
    weak = place.decision(Assurance.SINGLE_FACTOR)
    assert place.engine.approvals.decide(weak) is ApprovalRefusal.STRONG_REQUIRED
    assert place.facts() == []
    place = Place(Risk.MEDIUM)
    assert isinstance(place.engine.approvals.decide(place.decision()), Changed)
    assert place.facts() == []
    assert place.engine.overview.problems() == []


def test_a_consumption_that_is_refused_takes_decision_and_fact_back() -> None:
    place = Place()
    drift = consume_command(action_digest=action_binding()._replace().preview_digest)
    answer = place.engine.approvals.approve_and_consume(place.decision(), drift)
    assert answer is ApprovalRefusal.MUTATION_DRIFT
    assert place.facts() == []
    assert place.database.connection.execute("SELECT state FROM actions").fetchone()[0] == "pending"


def test_a_repeated_decision_stores_no_second_fact() -> None:
    place = Place()
    event = place.decision()
    assert isinstance(place.engine.approvals.decide(event), Changed)
    place.clocks.advance(2 * LIMIT_MS)
    assert isinstance(place.engine.approvals.decide(event), Replayed)
    assert len(place.facts()) == 1


@pytest.mark.adr("0006", "11")
@pytest.mark.parametrize(
    ("statement", "problem"),
    [
        ("DELETE FROM authorization_facts", "fact_missing"),
        ("UPDATE authorization_facts SET assurance = 'hardware'", "fact_damaged"),
        ("UPDATE authorization_facts SET authentication_id = 'ses-2'", "fact_damaged"),
        ("UPDATE authorization_facts SET mutation_id = 'dec-2'", "fact_damaged"),
        ("UPDATE authorization_facts SET authorized_by = 'user:bob'", "fact_damaged"),
        ("UPDATE authorization_facts SET fact_digest = zeroblob(32)", "fact_damaged"),
        ("UPDATE actions SET risk = 'medium'", "fact_damaged"),
    ],
)
def test_verify_sees_a_fact_that_is_gone_or_says_something_else(
    statement: str, problem: str
) -> None:
    place = Place()
    assert isinstance(place.engine.approvals.decide(place.decision()), Changed)
    place.spoil(statement)
    assert place.engine.overview.problems() == [{"row": 1, "problem": problem}]
