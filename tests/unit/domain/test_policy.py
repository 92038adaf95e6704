import pytest

from qinglong_edge.domain.errors import QinglongError, UsageError
from qinglong_edge.domain.ids import STATIC_PERMISSIONS
from qinglong_edge.domain.policy import (
    READ_SET,
    Authority,
    BindingState,
    BindRole,
    Effect,
    PolicyDecision,
    PolicyFence,
    PolicyRefusal,
    Project,
    ProjectStatus,
    Role,
    RoleBinding,
    Subject,
    SubjectType,
    append_binding,
    check_bind,
    check_subject,
    decide_effect,
    leaves_no_owner,
    parse_subject,
    role_above,
    role_grants,
    same_binding,
)
from tests.support.builders import ANA, BOB, BOT, FENCE, PROJECT

ACTIVE = Project(PROJECT, "Home", "home", ProjectStatus.ACTIVE, 4, 0, 0)
ARCHIVED = ACTIVE._replace(status=ProjectStatus.ARCHIVED)

OWNER, ADMIN, OPERATOR, VIEWER = Role
MATRIX: dict[str, tuple[Role, ...]] = {
    **dict.fromkeys(("project.read", "task.read", "run.read", "artifact.read"), tuple(Role)),
    "project.manage": (OWNER,),
    **dict.fromkeys(("task.create", "task.update"), (OWNER, ADMIN, OPERATOR)),
    "task.delete": (OWNER, ADMIN),
    **dict.fromkeys(("run.start", "run.stop", "run.retry"), (OWNER, ADMIN, OPERATOR)),
    "secret.use": (OWNER, ADMIN, OPERATOR),
    **dict.fromkeys(("secret.manage", "worker.manage", "policy.manage"), (OWNER, ADMIN)),
    **dict.fromkeys(("approval.decide", "approval.recover"), (OWNER, ADMIN)),
    "tool.call:x": (OWNER, ADMIN, OPERATOR),
    "tool.call:shell.exec": (OWNER, ADMIN, OPERATOR),
    "no.such": (),
    "tool.call": (),
}
CELLS = [(name, role, role in roles) for name, roles in MATRIX.items() for role in Role]
READS = {"project.read", "task.read", "run.read", "artifact.read"}


def bound(subject: Subject, role: Role | None, version: int = 2) -> RoleBinding:
    state = BindingState.REVOKED if role is None else BindingState.ACTIVE
    return RoleBinding(PROJECT, subject, version, state, role, f"bind-{version}", ANA, 0)


@pytest.mark.scenario(13, 14, 17, 18)
@pytest.mark.adr("0006", "1")
@pytest.mark.parametrize(("permission", "role", "granted"), CELLS)
def test_a_role_grants_what_the_matrix_says(permission: str, role: Role, *, granted: bool) -> None:
    assert role_grants(role, permission) is granted
    decided = decide_effect(ACTIVE, bound(BOB, role), BOB, permission)
    expected = (
        PolicyDecision(Effect.ALLOW, "role_grant", PolicyFence(4, 2))
        if granted
        else PolicyDecision(Effect.DENY, "permission_missing", PolicyFence(4, 2))
    )
    assert decided == expected


@pytest.mark.adr("0006", "1")
def test_the_matrix_names_every_permission() -> None:
    assert set(MATRIX) > STATIC_PERMISSIONS
    assert READ_SET == READS


@pytest.mark.scenario(19, 21)
@pytest.mark.adr("0006", "1")
@pytest.mark.parametrize(("permission", "role", "granted"), CELLS)
def test_an_agent_is_told_to_ask_for_everything_it_may_not_just_read(
    permission: str, role: Role, *, granted: bool
) -> None:
    """`approval.recover` is asked for as well, which upstream forgot (W15)."""
    decided = decide_effect(ACTIVE, bound(BOT, role), BOT, permission)
    if not granted:
        assert (decided.effect, decided.reason) == (Effect.DENY, "permission_missing")
    elif permission in READS:
        assert (decided.effect, decided.reason) == (Effect.ALLOW, "role_grant")
    else:
        assert decided.effect is Effect.REQUIRE_APPROVAL
        assert decided.reason == "agent_action_requires_approval"
    assert decided.fence == PolicyFence(4, 2)


@pytest.mark.scenario(20)
@pytest.mark.adr("0006", "1")
@pytest.mark.parametrize("kind", [kind for kind in SubjectType if kind is not SubjectType.AGENT])
def test_only_agents_are_ever_told_to_ask(kind: SubjectType) -> None:
    subject = Subject(kind, "one")
    for permission in MATRIX:
        decided = decide_effect(ACTIVE, bound(subject, OWNER), subject, permission)
        assert decided.effect is not Effect.REQUIRE_APPROVAL


@pytest.mark.scenario(12, 24)
@pytest.mark.parametrize(
    ("project", "binding", "reason", "fence"),
    [
        (None, None, "project_not_found", None),
        (None, bound(BOB, OWNER), "project_not_found", None),
        (ACTIVE, None, "subject_unbound", PolicyFence(4, None)),
        (ARCHIVED, None, "subject_unbound", PolicyFence(4, None)),
        (ACTIVE, bound(BOB, None, 3), "subject_unbound", PolicyFence(4, 3)),
        (
            ACTIVE,
            bound(BOB, OWNER)._replace(state=BindingState.REVOKED),
            "subject_unbound",
            PolicyFence(4, 2),
        ),
    ],
)
def test_strangers_are_denied(
    project: Project | None, binding: RoleBinding | None, reason: str, fence: PolicyFence | None
) -> None:
    decided = decide_effect(project, binding, BOB, "artifact.read")
    assert decided == PolicyDecision(Effect.DENY, reason, fence)


@pytest.mark.scenario(15, 16)
@pytest.mark.adr("0006", "1")
@pytest.mark.parametrize(
    ("role", "permission", "effect", "reason"),
    [
        (OPERATOR, "run.start", Effect.DENY, "project_archived"),
        (OPERATOR, "artifact.read", Effect.ALLOW, "role_grant"),
        (VIEWER, "run.start", Effect.DENY, "project_archived"),
        (OWNER, "policy.manage", Effect.DENY, "project_archived"),
        (OWNER, "tool.call:x", Effect.DENY, "project_archived"),
    ],
)
def test_an_archived_project_is_read_only(
    role: Role, permission: str, effect: Effect, reason: str
) -> None:
    decided = decide_effect(ARCHIVED, bound(BOB, role), BOB, permission)
    assert (decided.effect, decided.reason) == (effect, reason)


def test_an_active_binding_without_a_role_grants_nothing() -> None:
    broken = bound(BOB, OWNER)._replace(role=None)
    assert decide_effect(ACTIVE, broken, BOB, "artifact.read").effect is Effect.DENY


@pytest.mark.scenario(23)
@pytest.mark.parametrize(
    ("project", "binding"),
    [
        (ACTIVE, bound(ANA, OWNER)),
        (ACTIVE, bound(BOB, OWNER)._replace(project_id="another")),
        (ACTIVE._replace(project_id="another"), bound(BOB, OWNER)),
    ],
)
def test_a_binding_of_another_subject_or_project_decides_nothing(
    project: Project, binding: RoleBinding
) -> None:
    """Contract 3.4, rows 5 and 7: a snapshot of somebody else is a fault, never an answer."""
    with pytest.raises(QinglongError):
        decide_effect(project, binding, BOB, "artifact.read")


@pytest.mark.parametrize(
    ("role", "other", "above"),
    [(a, b, i < j) for i, a in enumerate(Role) for j, b in enumerate(Role)],
)
def test_roles_stand_in_one_order(role: Role, other: Role, *, above: bool) -> None:
    assert role_above(role, other) is above


BIND = BindRole(PROJECT, BOB, 0, VIEWER, "bind-1", ANA)


@pytest.mark.scenario(6, 9)
def test_a_role_history_grows_by_one_version_a_row() -> None:
    first = append_binding(None, BIND, 10)
    assert first == RoleBinding(PROJECT, BOB, 1, BindingState.ACTIVE, VIEWER, "bind-1", ANA, 10)
    assert isinstance(first, RoleBinding)
    change = BIND._replace(expected_version=1, role=OPERATOR, mutation_id="bind-2")
    second = append_binding(first, change, 5)
    assert isinstance(second, RoleBinding)
    assert (second.version, second.role, second.state) == (2, OPERATOR, BindingState.ACTIVE)
    revoke = BIND._replace(expected_version=2, role=None, mutation_id="bind-3")
    third = append_binding(second, revoke, 5)
    assert isinstance(third, RoleBinding)
    assert (third.version, third.role, third.state) == (3, None, BindingState.REVOKED)


@pytest.mark.scenario(7, 10)
@pytest.mark.parametrize(
    ("current", "expected"), [(None, 1), (bound(BOB, VIEWER, 1), 0), (bound(BOB, VIEWER, 1), 2)]
)
def test_a_wrong_expected_version_is_a_conflict(current: RoleBinding | None, expected: int) -> None:
    answer = append_binding(current, BIND._replace(expected_version=expected), 10)
    assert answer is PolicyRefusal.VERSION_CONFLICT


@pytest.mark.scenario(6, 7, 8)
@pytest.mark.adr("0002", "6")
@pytest.mark.parametrize(
    ("change", "same"),
    [
        ({}, True),
        ({"role": OPERATOR}, False),
        ({"role": None}, False),
        ({"subject": ANA}, False),
        ({"project_id": "another"}, False),
        ({"changed_by": BOB}, False),
        ({"expected_version": 1}, False),
    ],
)
def test_a_replay_means_the_same_row_times_apart(change: dict[str, object], *, same: bool) -> None:
    """Drift of the version pair is drift like any other; upstream calls it a version conflict."""
    row = append_binding(None, BIND, 10)
    assert isinstance(row, RoleBinding)
    asked = BIND._replace(**change)  # type: ignore[arg-type]
    assert same_binding(row, asked) is same


def test_a_change_that_takes_the_history_as_it_is_names_no_version() -> None:
    current = bound(BOB, VIEWER, 7)
    asked = BIND._replace(expected_version=None, role=OPERATOR)
    row = append_binding(current, asked, 10)
    assert isinstance(row, RoleBinding)
    assert row.version == 8
    assert same_binding(row, asked)


@pytest.mark.adr("0006", "4")
@pytest.mark.parametrize("own", Role)
@pytest.mark.parametrize("asked", [*Role, None])
@pytest.mark.parametrize("held", [*Role, None])
def test_nobody_grants_above_their_own_role_nor_touches_who_stands_above(
    own: Role, asked: Role | None, held: Role | None
) -> None:
    current = None if held is None else bound(BOB, held, 1)
    event = BIND._replace(expected_version=None, role=asked, authority=Authority(own, FENCE))
    above = any(role is not None and role_above(role, own) for role in (asked, held))
    answer = append_binding(current, event, 10)
    assert (answer is PolicyRefusal.ABOVE_OWN_ROLE) is above
    assert isinstance(append_binding(current, event._replace(authority=None), 10), RoleBinding)


def test_an_agent_is_never_bound_owner_not_even_by_the_program() -> None:
    for authority in (None, Authority(OWNER, FENCE)):
        event = BIND._replace(subject=BOT, role=OWNER, authority=authority)
        assert append_binding(None, event, 10) is PolicyRefusal.AGENT_OWNER
        event = event._replace(role=ADMIN)
        assert isinstance(append_binding(None, event, 10), RoleBinding)


@pytest.mark.adr("0006", "4")
@pytest.mark.parametrize(
    ("owners", "role", "none_left"),
    [
        ([BOB], None, True),
        ([BOB], ADMIN, True),
        ([BOB], OWNER, False),
        ([BOB, ANA], None, False),
        ([ANA], None, False),
        ([], None, False),
    ],
)
def test_a_project_keeps_its_last_owner(
    owners: list[Subject], role: Role | None, *, none_left: bool
) -> None:
    assert leaves_no_owner(owners, BOB, role) is none_left


@pytest.mark.scenario(5)
@pytest.mark.parametrize(
    "change",
    [
        {"project_id": ""},
        {"project_id": "a\n"},
        {"project_id": "x" * 129},
        {"subject": Subject(SubjectType.USER, "")},
        {"changed_by": Subject(SubjectType.USER, "x" * 256)},
        {"mutation_id": "a b"},
        {"mutation_id": "x" * 65},
        {"expected_version": -1},
        {"expected_version": 2_147_483_647},
        {"expected_version": True},
        {"expected_version": 1.0},
    ],
)
def test_a_malformed_binding_is_refused_before_any_read(change: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        check_bind(BIND._replace(**change))  # type: ignore[arg-type]


@pytest.mark.parametrize("expected", [None, 0, 2_147_483_646])
def test_a_binding_within_its_bounds_passes(expected: int | None) -> None:
    check_bind(BIND._replace(expected_version=expected))


@pytest.mark.scenario(5)
@pytest.mark.parametrize("name", ["a", "x" * 255, " 夜 ", "𝄞" * 127])
def test_a_subject_has_a_name(name: str) -> None:
    assert check_subject(Subject(SubjectType.USER, name)).id == name


@pytest.mark.scenario(5)
@pytest.mark.parametrize("name", ["", "x" * 256, "a\n", "a\x7f", "𝄞" * 128, "\ud800"])
def test_a_malformed_name_is_refused(name: str) -> None:
    with pytest.raises(UsageError):
        check_subject(Subject(SubjectType.USER, name))


@pytest.mark.parametrize(
    ("text", "subject"),
    [
        ("user:ana", ANA),
        ("agent:bot", BOT),
        ("user:a:b", Subject(SubjectType.USER, "a:b")),
        ("agent: x ", Subject(SubjectType.AGENT, " x ")),
    ],
)
def test_a_subject_is_read_from_its_text(text: str, subject: Subject) -> None:
    assert parse_subject(text) == subject
    assert str(subject) == text


@pytest.mark.parametrize(
    "text", ["", "ana", "user", "user:", "system:edge", "worker:w", "USER:ana", "User:x", ":ana"]
)
def test_any_other_text_names_no_subject(text: str) -> None:
    with pytest.raises(UsageError):
        parse_subject(text)


def test_a_word_without_a_colon_is_told_what_a_subject_is() -> None:
    with pytest.raises(UsageError, match="user:NAME or agent:NAME"):
        parse_subject("user")
