"""Who may do what: roles, permissions, effects and fences (contract 3).

The binding with the highest version of a subject counts, active or revoked. A decision carries the
fence it was taken under; the store re-reads the fence inside the transaction that acts on it, and
version equality is the whole proof.
"""

import enum
from collections.abc import Collection
from typing import NamedTuple

from qinglong_edge.domain import ids, limits
from qinglong_edge.domain.errors import DamagedError, UsageError


class SubjectType(enum.StrEnum):
    """Name the kinds of subject."""

    USER = "user"
    API_APP = "api_app"
    MCP_CLIENT = "mcp_client"
    AGENT = "agent"
    SYSTEM = "system"
    WORKER = "worker"


class Role(enum.StrEnum):
    """Name the roles, highest first."""

    OWNER = "owner"
    ADMIN = "admin"
    OPERATOR = "operator"
    VIEWER = "viewer"


class ProjectStatus(enum.StrEnum):
    """Name the states of a project."""

    ACTIVE = "active"
    ARCHIVED = "archived"


class BindingState(enum.StrEnum):
    """Name the states of a role binding."""

    ACTIVE = "active"
    REVOKED = "revoked"


class Effect(enum.StrEnum):
    """Name what the policy answers."""

    ALLOW = "allow"
    REQUIRE_APPROVAL = "require_approval"
    DENY = "deny"


class Subject(NamedTuple):
    """Name who acts."""

    type: SubjectType
    id: str

    @staticmethod
    def user(name: str) -> "Subject":
        """Return the user of this name."""
        return Subject(SubjectType.USER, name)

    def __str__(self) -> str:
        """Return the `type:id` form of the command line."""
        return f"{self.type}:{self.id}"


class Project(NamedTuple):
    """Hold the project row; raising its version invalidates every fence taken before."""

    project_id: str
    name: str
    slug: str
    status: ProjectStatus
    version: int
    created_at_ms: int
    updated_at_ms: int


class RoleBinding(NamedTuple):
    """Hold one append-only row of a subject's role history."""

    project_id: str
    subject: Subject
    version: int
    state: BindingState
    role: Role | None
    mutation_id: str
    changed_by: Subject
    created_at_ms: int


class PolicyFence(NamedTuple):
    """Prove under which policy a decision was taken; None means that no binding row existed."""

    project_version: int
    binding_version: int | None


class Authority(NamedTuple):
    """Hold the role that a change of policy rests on; the fence proves that it is still held."""

    role: Role
    fence: PolicyFence


class BindRole(NamedTuple):
    """Ask for the next row of a subject's role history; `role` None revokes.

    `expected_version` None takes the history as it is. `authority` None is the program's own act
    (init, reset); any other change is bounded by the role of `changed_by`.
    """

    project_id: str
    subject: Subject
    expected_version: int | None
    role: Role | None
    mutation_id: str
    changed_by: Subject
    authority: Authority | None = None


class PolicyDecision(NamedTuple):
    """Hold the effect, its one reason, and the fence (None only for an unknown project)."""

    effect: Effect
    reason: str
    fence: PolicyFence | None


class PolicyRefusal(enum.Enum):
    """Name why a role binding was not appended."""

    PROJECT_NOT_FOUND = "project_not_found"
    VERSION_CONFLICT = "role_binding_version_conflict"
    MUTATION_DRIFT = "role_binding_mutation_conflict"
    FENCE_CHANGED = "policy_fence_changed"
    ABOVE_OWN_ROLE = "role_above_own"
    AGENT_OWNER = "agent_owner"
    LAST_OWNER = "last_owner"


READ_SET = frozenset({"project.read", "task.read", "run.read", "artifact.read"})
_OPERATOR = READ_SET | {
    "task.create", "task.update", "run.start", "run.stop", "run.retry", "secret.use",
}  # fmt: skip
_ADMIN = _OPERATOR | {
    "task.delete", "secret.manage", "worker.manage", "policy.manage", "approval.decide",
    "approval.recover",
}  # fmt: skip
_GRANTS = {
    Role.OWNER: _ADMIN | {"project.manage"},
    Role.ADMIN: _ADMIN,
    Role.OPERATOR: _OPERATOR,
    Role.VIEWER: READ_SET,
}
_TOOL_ROLES = frozenset({Role.OWNER, Role.ADMIN, Role.OPERATOR})
_RANK = {role: rank for rank, role in enumerate(Role)}


def decide_effect(
    project: Project | None, binding: RoleBinding | None, subject: Subject, permission: str
) -> PolicyDecision:
    """Answer allow, require_approval or deny for one subject and permission.

    Only agents are ever told to ask for approval, and for everything outside the read set
    (`approval.recover` included); every other subject with a sufficient role is allowed. Raises
    `DamagedError` for a snapshot of another project or subject: such a thing decides nothing.
    """
    if project is None:
        return PolicyDecision(Effect.DENY, "project_not_found", None)
    if binding is not None and (binding.project_id, binding.subject) != (
        project.project_id,
        subject,
    ):
        raise DamagedError("policy_damaged", "the policy answered for somebody else")
    fence = PolicyFence(project.version, None if binding is None else binding.version)
    if binding is None or binding.role is None or binding.state is BindingState.REVOKED:
        return PolicyDecision(Effect.DENY, "subject_unbound", fence)
    if project.status is ProjectStatus.ARCHIVED and permission not in READ_SET:
        return PolicyDecision(Effect.DENY, "project_archived", fence)
    if not role_grants(binding.role, permission):
        return PolicyDecision(Effect.DENY, "permission_missing", fence)
    if subject.type is SubjectType.AGENT and permission not in READ_SET:
        return PolicyDecision(Effect.REQUIRE_APPROVAL, "agent_action_requires_approval", fence)
    return PolicyDecision(Effect.ALLOW, "role_grant", fence)


def role_grants(role: Role, permission: str) -> bool:
    """Tell whether a role holds a permission; tool calls are granted down to operator."""
    if permission.startswith("tool.call:"):
        return role in _TOOL_ROLES
    return permission in _GRANTS[role]


def role_above(role: Role, other: Role) -> bool:
    """Tell whether `role` stands above `other`: nobody grants above their own role."""
    return _RANK[role] < _RANK[other]


def check_subject(subject: Subject) -> Subject:
    """Return the subject with its id proven to be text of 1..255 characters."""
    ids.check_text(subject.id, "subject_id", most=limits.SUBJECT_ID_CHARS_MAX)
    return subject


def parse_subject(text: str) -> Subject:
    """Read the `user:NAME` or `agent:NAME` form of the command line."""
    kind, separator, name = text.partition(":")
    if not separator or kind not in {SubjectType.USER, SubjectType.AGENT}:
        raise UsageError("invalid_value", "subject: must be user:NAME or agent:NAME")
    return check_subject(Subject(SubjectType(kind), name))


def check_bind(event: BindRole) -> None:
    """Prove the shape of a command before anything is read; raises `UsageError`."""
    ids.check_text(event.project_id, "project_id", most=limits.PROJECT_ID_CHARS_MAX)
    check_subject(event.subject)
    check_subject(event.changed_by)
    ids.check_mutation_id(event.mutation_id, "mutation_id")
    if event.expected_version is not None:
        most = limits.VERSION_MAX - 1
        ids.check_int(event.expected_version, "expected_version", least=0, most=most)


def append_binding(
    current: RoleBinding | None, event: BindRole, at_ms: int
) -> RoleBinding | PolicyRefusal:
    """Return the next row of a role history, or why there is none.

    Nobody grants above their own role, nor changes somebody who stands above it.
    """
    version = 0 if current is None else current.version
    if event.expected_version not in {None, version}:
        return PolicyRefusal.VERSION_CONFLICT
    if event.subject.type is SubjectType.AGENT and event.role is Role.OWNER:
        return PolicyRefusal.AGENT_OWNER
    touched = (event.role, None if current is None else current.role)
    if event.authority is not None:
        own = event.authority.role
        if any(role is not None and role_above(role, own) for role in touched):
            return PolicyRefusal.ABOVE_OWN_ROLE
    state = BindingState.REVOKED if event.role is None else BindingState.ACTIVE
    return RoleBinding(
        event.project_id, event.subject, version + 1, state, event.role,
        event.mutation_id, event.changed_by, at_ms,
    )  # fmt: skip


def same_binding(row: RoleBinding, event: BindRole) -> bool:
    """Tell whether a stored row is what this command would have written (times apart)."""
    return (
        row.project_id == event.project_id
        and row.subject == event.subject
        and event.expected_version in {None, row.version - 1}
        and row.role == event.role
        and row.changed_by == event.changed_by
    )


def leaves_no_owner(owners: Collection[Subject], subject: Subject, role: Role | None) -> bool:
    """Tell whether a project loses its last owner when `subject` gets this role (None: none).

    `owners` are the active users that are bound as owners now; agents never count.
    """
    return role is not Role.OWNER and set(owners) == {subject}
