"""What is proposed: the plan, its digests, its preview, and what each type may require.

The digest rule: `action_digest` is the SHA-256 of `qinglong-edge.action.v1` NUL and the canonical
bytes of {schemaVersion, actionType, projectId, params, files}; only `run.create` keeps the older
form of contract 15.1. A person approves that digest, the start barrier compares it, and nothing but
the stored plan bytes is ever executed (ADR-0003).
"""

import enum
from typing import NamedTuple

from qinglong_edge.domain import ids, limits
from qinglong_edge.domain.canonical import (
    ACTION_DOMAIN,
    PREVIEW_DOMAIN,
    Fields,
    JsonObject,
    canonical_bytes,
    digest,
    ordered,
    parse_object,
    sha256_hex,
)
from qinglong_edge.domain.errors import UsageError

PLAN_SCHEMA_VERSION = 1
RUN_CREATE = "run.create"
TASK_PUBLISH = "task.publish"
LOCAL_PROCESS = "local_process"


class Risk(enum.StrEnum):
    """Name the risks, lowest first; high and critical need strong authentication."""

    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"
    CRITICAL = "critical"


class Capability(enum.StrEnum):
    """Name how an unknown outcome of a type may be settled (ADR-0033, 4)."""

    AUTOMATIC = "automatic"
    MANUAL_ONLY = "manual_only"


class ActionType(NamedTuple):
    """Hold what is fixed for one action type."""

    permission: str
    least_risk: Risk
    capability: Capability


ACTION_TYPES = {
    "shell.exec": ActionType("tool.call:shell.exec", Risk.MEDIUM, Capability.MANUAL_ONLY),
    RUN_CREATE: ActionType("run.start", Risk.MEDIUM, Capability.AUTOMATIC),
    "run.cancel": ActionType("run.stop", Risk.MEDIUM, Capability.AUTOMATIC),
    TASK_PUBLISH: ActionType("task.update", Risk.LOW, Capability.AUTOMATIC),
    "package.install": ActionType("tool.call:package.install", Risk.HIGH, Capability.AUTOMATIC),
    "http.request": ActionType("tool.call:http.request", Risk.MEDIUM, Capability.MANUAL_ONLY),
}

RISK_RANK = {risk: rank for rank, risk in enumerate(Risk)}


def least_risk(action_type: str, *, repeats: bool) -> Risk:
    """Return the lowest risk a proposal may carry: its type's word, and high for a repeat."""
    least = ACTION_TYPES[action_type].least_risk
    return max(least, Risk.HIGH, key=RISK_RANK.__getitem__) if repeats else least


def is_automatic(action_type: str) -> bool:
    """Tell whether evidence may settle an unknown outcome of this type (ADR-0033, 4)."""
    known = ACTION_TYPES.get(action_type)
    return known is not None and known.capability is Capability.AUTOMATIC


def needs_strong(risk: Risk) -> bool:
    """Tell whether deciding needs strong authentication (W29)."""
    return RISK_RANK[risk] >= RISK_RANK[Risk.HIGH]


class PlanFile(NamedTuple):
    """Name a file whose content the approval covers."""

    path: str
    sha256: str


class Plan(NamedTuple):
    """Hold what is to be done; `params` are checked by the type's own handler."""

    action_type: str
    project_id: str
    params: JsonObject
    files: tuple[PlanFile, ...]


class ActionBinding(NamedTuple):
    """Hold the immutable identity that approval, dispatch and evidence share."""

    permission: str
    action_type: str
    action_ref: str
    action_digest: str
    preview_digest: str


def parse_plan(data: bytes, project_id: str) -> Plan:
    """Read a plan file of the command line: exact shape, at most 32 KiB."""
    fields = Fields(parse_object(data, "plan"), "plan")
    _check_schema(fields.take("schema_version"), "plan.schema_version")
    action_type = ids.check_ident(fields.take("action_type"), "plan.action_type")
    params = fields.take("params")
    if not isinstance(params, dict):
        raise ids.invalid("plan.params", "must be an object")
    files = _parse_files(fields.maybe("files", []))
    fields.done()
    plan = Plan(action_type, project_id, params, files)
    if len(plan_body(plan)) > limits.PLAN_BYTES_MAX:
        raise UsageError("too_large", f"plan: over {limits.PLAN_BYTES_MAX} bytes")
    return plan


def _check_schema(value: object, field: str) -> None:
    ids.check_int(value, field, least=PLAN_SCHEMA_VERSION, most=PLAN_SCHEMA_VERSION)


def _parse_files(value: object) -> tuple[PlanFile, ...]:
    if not isinstance(value, list) or len(value) > limits.PLAN_FILES_MAX:
        raise ids.invalid("plan.files", f"must be a list of at most {limits.PLAN_FILES_MAX}")
    files = []
    for item in value:
        fields = Fields(item, "plan.files[]")
        path = check_path(fields.take("path"), "plan.files[].path")
        files.append(PlanFile(path, ids.check_digest(fields.take("sha256"), "plan.files[].sha256")))
        fields.done()
    files.sort(key=lambda file: file.path.encode())
    if len({file.path for file in files}) != len(files):
        raise ids.invalid("plan.files", "names a path twice")
    return tuple(files)


def check_path(value: object, field: str) -> str:
    """Return an absolute path without control characters."""
    path = ids.check_text(value, field, most=limits.PATH_CHARS_MAX)
    if not path.startswith("/"):
        raise ids.invalid(field, "must be an absolute path")
    return path


def plan_body(plan: Plan) -> bytes:
    """Return the canonical bytes that are stored, digested and later executed."""
    return canonical_bytes(
        {
            "schemaVersion": PLAN_SCHEMA_VERSION,
            "actionType": plan.action_type,
            "projectId": plan.project_id,
            "params": ordered(plan.params),
            "files": [{"path": file.path, "sha256": file.sha256} for file in plan.files],
        }
    )


def plan_from_body(body: bytes) -> Plan:
    """Read stored plan bytes back; the shape is the one `plan_body` writes."""
    fields = Fields(parse_object(body, "stored plan"), "plan")
    _check_schema(fields.take("schemaVersion"), "plan.schemaVersion")
    action_type = ids.check_ident(fields.take("actionType"), "plan.actionType")
    project_id = ids.check_text(
        fields.take("projectId"), "plan.projectId", most=limits.PROJECT_ID_CHARS_MAX
    )
    params = fields.take("params")
    if not isinstance(params, dict):
        raise ids.invalid("plan.params", "must be an object")
    files = _parse_files(fields.take("files"))
    fields.done()
    return Plan(action_type, project_id, params, files)


def action_digest(plan: Plan) -> str:
    """Return the digest that a person approves."""
    if plan.action_type == RUN_CREATE:
        return run_plan_digest(_run_plan(plan))
    return sha256_hex(ACTION_DOMAIN + b"\0" + plan_body(plan))


def preview_digest(preview: JsonObject) -> str:
    """Return the digest of what the approver was shown."""
    return digest(ordered(preview), domain=PREVIEW_DOMAIN)


def bind(plan: Plan, permission: str, preview: JsonObject) -> ActionBinding:
    """Return the identity of a plan, its permission and its preview."""
    value = action_digest(plan)
    ref = task_ref(plan) if plan.action_type == RUN_CREATE else value
    return ActionBinding(permission, plan.action_type, ref, value, preview_digest(preview))


def task_ref(plan: Plan) -> str:
    """Return how a `run.create` refers to what it runs."""
    return f"task:{plan.params.get('task_id')}"


def _run_plan(plan: Plan) -> JsonObject:
    return {
        "schemaVersion": PLAN_SCHEMA_VERSION,
        "actionType": RUN_CREATE,
        "actionRef": task_ref(plan),
        "projectId": plan.project_id,
        "taskId": plan.params.get("task_id"),
        "taskRevision": plan.params.get("task_revision"),
        "executorType": LOCAL_PROCESS,
        "priority": plan.params.get("priority"),
        "taskName": plan.params.get("task_name"),
    }


def run_plan_digest(plan: JsonObject) -> str:
    """Return the `run.create` plan digest of contract 15.1; members in that order."""
    return digest({name: plan.get(name) for name in _RUN_PLAN_MEMBERS})


_RUN_PLAN_MEMBERS = (
    "schemaVersion", "actionType", "actionRef", "projectId", "taskId", "taskRevision",
    "executorType", "priority", "taskName", "taskSnapshotRef", "inputRef",
)  # fmt: skip
