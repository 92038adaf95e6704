"""A decision holds only while the policy it was taken under stands: fences in every mutation."""

import pytest

from qinglong_edge.domain.approval import ApprovalRefusal
from qinglong_edge.domain.decisions import Changed, Replayed
from qinglong_edge.domain.dispatch import FENCE_CHANGED
from qinglong_edge.domain.machines import ApprovalState, ExecutionStatus
from qinglong_edge.domain.policy import (
    Authority,
    BindRole,
    PolicyFence,
    PolicyRefusal,
    Role,
    RoleBinding,
    Subject,
    SubjectType,
)
from tests.contract.adapters import Repositories
from tests.contract.story import (
    Story,
    cancel_of,
    changed,
    complete_of,
    consume_of,
    decide_of,
    propose_of,
    replayed,
    start_of,
)
from tests.support.builders import ANA, BOB, BOT, EDGE, FENCE, PROJECT

STRANGER = Subject(SubjectType.AGENT, "stranger")


def move_policy(story: Story, subject: Subject, how: str) -> None:
    if how == "revoked":
        if subject == ANA:  # the last owner stays; another version is enough to move the fence
            story.revoke(BOB, Role.OWNER)
            story.revoke(ANA, Role.OWNER)
        else:
            story.revoke(subject)
    else:
        story.repositories.raise_project_version()


MOVES = pytest.mark.parametrize("how", ["revoked", "project"])


@pytest.mark.scenario(32, 33)
@MOVES
def test_a_request_under_an_old_policy_is_refused(story: Story, how: str) -> None:
    move_policy(story, BOT, how)
    before = story.repositories.snapshot()
    answer = story.ports.approvals.propose(propose_of(1))
    assert answer is ApprovalRefusal.FENCE_CHANGED
    assert story.repositories.snapshot() == before


def test_a_request_for_an_unknown_project_or_subject_is_refused(story: Story) -> None:
    approvals = story.ports.approvals
    nowhere = propose_of(1, project_id="nowhere")
    assert approvals.propose(nowhere) is ApprovalRefusal.FENCE_CHANGED
    unbound = propose_of(1, requested_by=STRANGER)
    assert approvals.propose(unbound) is ApprovalRefusal.FENCE_CHANGED
    without = unbound._replace(fence=PolicyFence(1, None))
    changed(approvals.propose(without))  # who may propose is decided above the store


@pytest.mark.adr("0006", "7")
@pytest.mark.scenario(51)
@MOVES
def test_a_decision_under_an_old_policy_is_refused(story: Story, how: str) -> None:
    stored = story.proposed()
    move_policy(story, ANA, how)
    assert story.ports.approvals.decide(decide_of(1)) is ApprovalRefusal.FENCE_CHANGED
    assert story.record() == stored


@pytest.mark.adr("0006", "7")
@pytest.mark.scenario(64)
@MOVES
def test_a_consumption_under_an_old_policy_is_refused(story: Story, how: str) -> None:
    stored = story.approved()
    move_policy(story, BOT, how)
    assert story.ports.approvals.consume(consume_of(1)) is ApprovalRefusal.FENCE_CHANGED
    assert story.record() == stored
    assert story.approval().state is ApprovalState.APPROVED


@MOVES
@pytest.mark.parametrize("spent", [False, True])
def test_a_cancellation_under_an_old_policy_is_refused(story: Story, how: str, spent: bool) -> None:
    stored = story.consumed() if spent else story.proposed()
    move_policy(story, ANA, how)
    assert story.ports.approvals.cancel(cancel_of(1)) is ApprovalRefusal.FENCE_CHANGED
    assert story.record() == stored


@MOVES
def test_what_was_done_replays_under_any_policy(story: Story, how: str) -> None:
    stored = story.consumed()
    move_policy(story, BOT, how)
    approvals = story.ports.approvals
    assert replayed(approvals.propose(propose_of(1))) == stored
    assert replayed(approvals.decide(decide_of(1))) == stored
    assert replayed(approvals.consume(consume_of(1))) == stored


@pytest.mark.adr("0005", "2")
@MOVES
def test_a_moved_policy_blocks_the_start_inside_its_transaction(
    story: Story, how: str, repositories: Repositories
) -> None:
    """W2: the consume-time fence of the requester is checked with the barrier."""
    story.claimed()
    move_policy(story, BOT, how)
    commits = repositories.commits()
    stored = changed(story.ports.dispatches.start(start_of(1)))
    assert repositories.commits() == commits + 1
    ended = story.execution()
    assert (ended.status, ended.last_result_code) == (ExecutionStatus.BLOCKED, FENCE_CHANGED)
    assert ended.started_at_ms is None
    assert replayed(story.ports.dispatches.start(start_of(1))) == stored


@MOVES
def test_a_verdict_is_welcome_under_any_policy(story: Story, how: str) -> None:
    story.started()
    move_policy(story, BOT, how)
    changed(story.ports.dispatches.complete(complete_of(1))[0])


def test_somebody_elses_role_moves_no_fence(story: Story) -> None:
    story.claimed()
    story.revoke(BOB)
    changed(story.ports.dispatches.start(start_of(1)))
    assert story.status() is ExecutionStatus.EXECUTING


@pytest.mark.scenario(6, 7, 9)
def test_a_history_grows_by_one_version_a_time(story: Story) -> None:
    policy = story.ports.policy
    first = BindRole(PROJECT, STRANGER, 0, Role.VIEWER, "m-1", ANA)
    stored = policy.bind(first)
    assert isinstance(stored, Changed)
    assert stored.after.version == 1
    story.clocks.advance(9)
    assert policy.bind(first) == Replayed(stored.after)
    drift = policy.bind(first._replace(role=Role.OPERATOR))
    assert drift is PolicyRefusal.MUTATION_DRIFT
    stale = policy.bind(first._replace(mutation_id="m-2"))
    assert stale is PolicyRefusal.VERSION_CONFLICT
    second = policy.bind(BindRole(PROJECT, STRANGER, 1, None, "m-2", ANA))
    assert isinstance(second, Changed)
    assert (second.after.version, second.after.role) == (2, None)
    assert policy.resolve(PROJECT, STRANGER)[1] == second.after


@pytest.mark.scenario(10)
def test_two_first_bindings_have_one_winner(story: Story, repositories: Repositories) -> None:
    other = repositories.second_session().policy
    won = other.bind(BindRole(PROJECT, STRANGER, 0, Role.VIEWER, "m-1", ANA))
    assert isinstance(won, Changed)
    lost = story.ports.policy.bind(BindRole(PROJECT, STRANGER, 0, Role.OPERATOR, "m-2", BOB))
    assert lost is PolicyRefusal.VERSION_CONFLICT
    assert story.ports.policy.resolve(PROJECT, STRANGER)[1] == won.after


@pytest.mark.scenario(1, 11)
def test_what_is_unknown_resolves_to_nothing(story: Story) -> None:
    policy = story.ports.policy
    project, binding = policy.resolve(PROJECT, STRANGER)
    assert project is not None
    assert (project.version, binding) == (1, None)
    assert policy.resolve("nowhere", ANA) == (None, None)
    answer = policy.bind(BindRole("nowhere", STRANGER, 0, Role.VIEWER, "m-1", ANA))
    assert answer is PolicyRefusal.PROJECT_NOT_FOUND


@pytest.mark.adr("0006", "4")
def test_the_last_owner_stays(story: Story) -> None:
    for role in (None, Role.ADMIN):
        answer = story.ports.policy.bind(BindRole(PROJECT, ANA, None, role, "m-1", EDGE))
        assert answer is PolicyRefusal.LAST_OWNER
    agent = story.ports.policy.bind(BindRole(PROJECT, BOT, None, Role.OWNER, "m-2", EDGE))
    assert agent is PolicyRefusal.AGENT_OWNER


@pytest.mark.adr("0006", "4")
def test_nobody_grants_above_their_own_role(story: Story) -> None:
    grant = BindRole(PROJECT, STRANGER, 0, Role.OPERATOR, "m-1", BOB, Authority(Role.ADMIN, FENCE))
    bound = story.ports.policy.bind(grant)
    assert isinstance(bound, Changed)
    assert isinstance(bound.after, RoleBinding)
    above = grant._replace(subject=BOB, expected_version=1, role=Role.OWNER, mutation_id="m-2")
    assert story.ports.policy.bind(above) is PolicyRefusal.ABOVE_OWN_ROLE
    story.revoke(BOB)
    late = grant._replace(mutation_id="m-3", expected_version=1, role=Role.VIEWER)
    assert story.ports.policy.bind(late) is PolicyRefusal.FENCE_CHANGED
