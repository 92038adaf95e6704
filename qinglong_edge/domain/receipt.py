"""The receipt of an action on this database: bytes that bind its whole identity (contract 11.4).

It is written in the transaction that has the effect, so it is there exactly when the effect is. Its
digest is the digest of its bytes; whoever reads it compares every field with the dispatch.
"""

from typing import NamedTuple

from qinglong_edge.domain import ids, limits
from qinglong_edge.domain.action import RUN_CREATE, TASK_PUBLISH
from qinglong_edge.domain.canonical import Fields, Json, canonical_bytes, parse_object, sha256_hex
from qinglong_edge.domain.errors import UsageError
from qinglong_edge.domain.evidence import Evidence
from qinglong_edge.domain.execution import Dispatch, Execution, Outcome
from qinglong_edge.domain.recovery import Finding
from qinglong_edge.domain.run import Attempt, Run, created_by
from qinglong_edge.domain.task import TaskRevision, revision_text

RECEIPT_SCHEMA_VERSION = 1


class Words(NamedTuple):
    """Hold what an action type calls its resource and its codes."""

    resource_type: str
    done: str
    missing: str
    conflict: str
    verified: str


WORDS = {
    RUN_CREATE: Words(
        "run",
        "approved_run_created",
        "approved_run_receipt_missing",
        "approved_run_receipt_conflict",
        "approved_run_receipt_verified",
    ),
    TASK_PUBLISH: Words(
        "task_revision",
        "task_published",
        "task_receipt_missing",
        "task_receipt_conflict",
        "task_receipt_verified",
    ),
}


class ActionReceipt(NamedTuple):
    """Hold a receipt; members in the order of contract 15.2."""

    schema_version: int
    dispatch_id: str
    approval_request_id: str
    project_id: str
    action_type: str
    action_digest: str
    execution_attempt: int
    execution_version: int
    started_at_ms: int
    idempotency_key: str
    outcome: str
    result_code: str
    resource_type: str
    resource_id: str
    finished_at_ms: int
    created_at_ms: int


class Found(NamedTuple):
    """Hold what one read of the store found for a dispatch.

    `digest` is the stored one. `resource` is the row that the receipt names, `attempt` the latest
    one of a run, `stray` that a resource of this dispatch stands without a receipt.
    """

    body: bytes | None
    digest: str | None
    resource: Run | TaskRevision | None
    attempt: Attempt | None
    stray: bool


def issue(
    dispatch: Dispatch, execution: Execution, resource_id: str, finished_at_ms: int
) -> ActionReceipt:
    """Return the receipt of a started action that had its effect; never before its start."""
    words = WORDS[dispatch.action.action_type]
    started_at_ms = execution.started_at_ms or 0
    at_ms = max(finished_at_ms, started_at_ms)
    return ActionReceipt(
        RECEIPT_SCHEMA_VERSION, dispatch.dispatch_id, dispatch.approval_request_id,
        dispatch.project_id, dispatch.action.action_type, dispatch.action.action_digest,
        execution.attempt_count, execution.version, started_at_ms, dispatch.dispatch_id,
        Outcome.SUCCEEDED.value, words.done, words.resource_type, resource_id, at_ms, at_ms,
    )  # fmt: skip


def receipt_bytes(receipt: ActionReceipt) -> bytes:
    """Return the canonical bytes of a receipt."""
    values: tuple[Json, ...] = receipt
    return canonical_bytes(dict(zip(_MEMBERS, values, strict=True)))


def receipt_digest(body: bytes) -> str:
    """Return the evidence digest of a receipt's bytes."""
    return sha256_hex(body)


def parse_receipt(data: bytes) -> ActionReceipt:
    """Read a receipt's bytes: at most 4 KiB, exactly these members; raises `UsageError`.

    Whatever nobody takes below is not in the canonical form either.
    """
    value = parse_object(data, "receipt", most=limits.RECEIPT_BYTES_MAX)
    fields = Fields(value, "receipt")
    values = [fields.take(name) for name in _MEMBERS]
    for name, member in zip(_MEMBERS, values, strict=True):
        number = name in _NUMBERS
        if type(member) is not (int if number else str):
            raise ids.invalid(f"receipt.{name}", "has another type")
    receipt = ActionReceipt(*values)  # type: ignore[arg-type]
    if receipt_bytes(receipt) != data:
        raise ids.invalid("receipt", "is not in its canonical form")
    return receipt


def resource_of_task(revision: TaskRevision) -> str:
    """Return the resource id of a revision."""
    return f"{revision.task_id}:{revision_text(revision.number)}"


def judge(dispatch: Dispatch, execution: Execution, found: Found) -> Evidence:
    """Say what a look at the store proves about a started action; never that nothing happened."""
    words = WORDS[dispatch.action.action_type]
    conflict = Evidence(Finding.CONFLICT, words.conflict)
    if execution.started_at_ms is None:
        return conflict
    if found.body is None:
        if found.stray:
            return conflict
        return Evidence(Finding.MISSING, words.missing)
    try:
        receipt = parse_receipt(found.body)
    except UsageError:
        return conflict
    value = receipt_digest(found.body)
    bound = issue(dispatch, execution, receipt.resource_id, receipt.finished_at_ms)
    said = receipt._replace(execution_version=execution.version)
    seen = 1 <= receipt.execution_version <= execution.version
    if said != bound or value != found.digest or not seen:
        return conflict
    if not _resource_holds(dispatch, receipt, found):
        return conflict
    return Evidence(Finding.VERIFIED_SUCCEEDED, words.verified, value)


def _resource_holds(dispatch: Dispatch, receipt: ActionReceipt, found: Found) -> bool:
    resource = found.resource
    named = (receipt.resource_type, receipt.resource_id)
    if isinstance(resource, Run):
        mine = created_by(resource, dispatch) and found.attempt is not None
        return mine and named == (WORDS[RUN_CREATE].resource_type, resource.run_id)
    if isinstance(resource, TaskRevision):
        said = (resource.dispatch_id, resource.project_id)
        mine = said == (dispatch.dispatch_id, dispatch.project_id)
        kind = WORDS[TASK_PUBLISH].resource_type
        return mine and named == (kind, resource_of_task(resource))
    return False


_MEMBERS = (
    "schemaVersion", "dispatchId", "approvalRequestId", "projectId", "actionType", "actionDigest",
    "executionAttempt", "executionVersion", "startedAtMs", "idempotencyKey", "outcome",
    "resultCode", "resourceType", "resourceId", "finishedAtMs", "createdAtMs",
)  # fmt: skip
_NUMBERS = frozenset(
    {
        "schemaVersion", "executionAttempt", "executionVersion", "startedAtMs", "finishedAtMs",
        "createdAtMs",
    }
)  # fmt: skip
