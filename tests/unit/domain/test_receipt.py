"""A receipt proves an effect only where every field of it, and its resource, say the same."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from qinglong_edge.domain import limits
from qinglong_edge.domain.action import Plan, bind
from qinglong_edge.domain.canonical import canonical_bytes, sha256_hex
from qinglong_edge.domain.effect import CreateRun, PublishTask, plan_of
from qinglong_edge.domain.errors import UsageError
from qinglong_edge.domain.evidence import Evidence
from qinglong_edge.domain.execution import Dispatch, Execution
from qinglong_edge.domain.machines import ExecutionStatus
from qinglong_edge.domain.receipt import (
    WORDS,
    ActionReceipt,
    Found,
    issue,
    judge,
    parse_receipt,
    receipt_bytes,
    receipt_digest,
    resource_of_task,
)
from qinglong_edge.domain.recovery import Finding
from qinglong_edge.domain.run import Attempt, Run, RunIds, RunPlan, admit
from qinglong_edge.domain.task import TaskRevision, parse_task, task_body
from tests.support.builders import PREVIEW, PROJECT, dispatch, execution
from tests.support.clock import WALL_MS

R1 = ActionReceipt(
    1, "dsp-1", "apr-1", "home-lab", "run.create",
    "cad219f1877b9a449f09d31f9bda1262ea4f40c1ca28a980556d08d99cf52303", 1, 2, 1_700_000_000_000,
    "dsp-1", "succeeded", "approved_run_created", "run", "01890000-0000-7000-8000-000000000001",
    1_700_000_000_005, 1_700_000_000_005,
)  # fmt: skip
MEMBERS = (
    "schemaVersion", "dispatchId", "approvalRequestId", "projectId", "actionType", "actionDigest",
    "executionAttempt", "executionVersion", "startedAtMs", "idempotencyKey", "outcome",
    "resultCode", "resourceType", "resourceId", "finishedAtMs", "createdAtMs",
)  # fmt: skip

STARTED_MS = WALL_MS + 2_000
EXECUTING = execution(ExecutionStatus.EXECUTING)
CREATE = CreateRun(RunPlan("task-1", "r1", "Task", 0), RunIds("run-1", "att-1", "ev-1", "ev-2"))
TASK = parse_task({"schema_version": 1, "task_id": "task-1", "name": "T", "argv": ["x"]}, "task")
REVISION = TaskRevision("task-1", PROJECT, 3, "T", task_body(TASK), "dsp-1", STARTED_MS)


def of(plan: Plan) -> Dispatch:
    return dispatch(action=bind(plan, "run.start", PREVIEW))


RUN_DISPATCH = of(plan_of(CREATE, PROJECT))
TASK_DISPATCH = of(plan_of(PublishTask(TASK), PROJECT))
MADE = admit(RUN_DISPATCH, STARTED_MS, *CREATE)
RECEIPT = issue(RUN_DISPATCH, EXECUTING, "run-1", STARTED_MS + 5)

CONFLICT = Evidence(Finding.CONFLICT, "approved_run_receipt_conflict")
MISSING = Evidence(Finding.MISSING, "approved_run_receipt_missing")


def found(receipt: ActionReceipt | bytes = RECEIPT, **changes: Any) -> Found:
    """Return a look at a store in which receipt, digest, run and attempt agree."""
    body = receipt if isinstance(receipt, bytes) else receipt_bytes(receipt)
    whole = Found(body, receipt_digest(body), MADE.run, MADE.attempt, stray=True)
    return whole._replace(**changes)


def seen(look: Found, run: Execution = EXECUTING) -> Evidence:
    return judge(RUN_DISPATCH, run, look)


# The bytes.


@pytest.mark.scenario(186)
@pytest.mark.adr("0033", "3.1")
def test_the_published_vector_of_a_receipt() -> None:
    body = receipt_bytes(R1)
    assert len(body) == 482
    assert receipt_digest(body) == (
        "8520c39628fde2d76382a32e51fa2911926f38146aff7922b12f7da00b155a2d"
    )
    assert tuple(json.loads(body)) == MEMBERS
    assert parse_receipt(body) == R1


@pytest.mark.scenario(187, 190, 199)
@pytest.mark.adr("0033", "3.1")
@pytest.mark.parametrize(
    ("finished_ms", "stamp_ms"),
    [(STARTED_MS + 5, STARTED_MS + 5), (STARTED_MS, STARTED_MS), (STARTED_MS - 1, STARTED_MS)],
)
def test_a_receipt_binds_the_whole_action_and_never_ends_before_its_start(
    finished_ms: int, stamp_ms: int
) -> None:
    """Upstream gives up where the clock lies behind the start (W23)."""
    run = EXECUTING._replace(attempt_count=3, version=9)
    assert issue(RUN_DISPATCH, run, "run-1", finished_ms) == ActionReceipt(
        schema_version=1,
        dispatch_id="dsp-1",
        approval_request_id="apr-1",
        project_id=PROJECT,
        action_type="run.create",
        action_digest=RUN_DISPATCH.action.action_digest,
        execution_attempt=3,
        execution_version=9,
        started_at_ms=STARTED_MS,
        idempotency_key="dsp-1",
        outcome="succeeded",
        result_code="approved_run_created",
        resource_type="run",
        resource_id="run-1",
        finished_at_ms=stamp_ms,
        created_at_ms=stamp_ms,
    )


def test_the_receipt_of_a_task_names_its_revision() -> None:
    resource = resource_of_task(REVISION)
    receipt = issue(TASK_DISPATCH, EXECUTING, resource, STARTED_MS)
    said = (receipt.action_type, receipt.result_code, receipt.resource_type, receipt.resource_id)
    assert said == ("task.publish", "task_published", "task_revision", "task-1:r3")


@pytest.mark.scenario(202)
@pytest.mark.adr("0033", "3.2")
def test_the_largest_receipt_stays_below_four_kib_and_holds_nothing_of_the_command_line() -> None:
    secret = "PASSWORD=hunter2"
    plan = plan_of(PublishTask(TASK._replace(argv=("/bin/sh", secret))), "夜" * 128)
    large = of(plan)._replace(
        dispatch_id="d" * 64, approval_request_id="a" * 64, project_id="夜" * 128
    )
    most = limits.SAFE_INTEGER_MAX
    run = EXECUTING._replace(
        attempt_count=limits.ATTEMPTS_MAX, version=limits.VERSION_MAX, started_at_ms=most
    )
    body = receipt_bytes(issue(large, run, "r" * 64, most))
    assert len(body) <= limits.RECEIPT_BYTES_MAX == 4_096
    assert secret.encode() not in body
    assert parse_receipt(body).project_id == "夜" * 128


def members(**changes: Any) -> dict[str, Any]:
    return {**dict(zip(MEMBERS, RECEIPT, strict=True)), **changes}


def without(name: str) -> dict[str, Any]:
    return {key: value for key, value in members().items() if key != name}


def of_wrong_type() -> Iterator[dict[str, Any]]:
    for name, value in zip(MEMBERS, RECEIPT, strict=True):
        others: list[Any] = [None, True, [value], {}, str(value) if type(value) is int else 1]
        yield from (members(**{name: other}) for other in others)


FOREIGN: list[bytes] = [
    b"", b"{}", b"[]", b"null", b"\xff",
    receipt_bytes(RECEIPT)[:-1], receipt_bytes(RECEIPT) + b"{}",
    *(canonical_bytes(value) for value in of_wrong_type()),
    *(canonical_bytes(without(name)) for name in MEMBERS),
    canonical_bytes(members(note="x")),
    canonical_bytes(members(hmac=None)),
    canonical_bytes(members(dispatchId="d" * 4_096)),
    receipt_bytes(RECEIPT) + b"\n",
    receipt_bytes(RECEIPT).replace(b'"executionVersion":2', b'"executionVersion":2.0'),
    receipt_bytes(RECEIPT).replace(b'"executionVersion":2', b'"executionVersion":-0'),
    receipt_bytes(RECEIPT).replace(b'"outcome"', b'"schemaVersion":1,"outcome"'),
    receipt_bytes(RECEIPT).replace(b"dsp-1", b"\\u0064sp-1", 1),
    canonical_bytes(dict(reversed(members().items()))),
    json.dumps(members()).encode(),
]  # fmt: skip


@pytest.mark.scenario(161, 194)
@pytest.mark.adr("0033", "3.2")
@pytest.mark.parametrize("body", FOREIGN)
def test_bytes_of_any_other_shape_are_no_receipt_even_under_their_own_digest(body: bytes) -> None:
    """Upstream's provider throws, and the outcome stays unavailable for ever (W22)."""
    with pytest.raises(UsageError):
        parse_receipt(body)
    assert seen(found(body)) == CONFLICT


@pytest.mark.adr("0033", "3.2")
def test_the_size_is_looked_at_before_the_shape() -> None:
    for size, code in ((4_096, "malformed_json"), (4_097, "too_large")):
        with pytest.raises(UsageError) as caught:
            parse_receipt(b"x" * size)
        assert caught.value.code == code


# What a look proves.


@pytest.mark.scenario(187, 193)
@pytest.mark.adr("0033", "3.1")
@pytest.mark.adr("0033", "4.3")
def test_a_receipt_that_binds_the_action_and_its_run_is_proof() -> None:
    body = receipt_bytes(RECEIPT)
    assert seen(found()) == Evidence(
        Finding.VERIFIED_SUCCEEDED, "approved_run_receipt_verified", sha256_hex(body)
    )


@pytest.mark.scenario(193)
@pytest.mark.adr("0033", "3.1")
def test_a_published_revision_is_proof_as_well() -> None:
    receipt = issue(TASK_DISPATCH, EXECUTING, resource_of_task(REVISION), STARTED_MS)
    look = found(receipt, resource=REVISION, attempt=None)
    proof = receipt_digest(receipt_bytes(receipt))
    verified = Evidence(Finding.VERIFIED_SUCCEEDED, "task_receipt_verified", proof)
    assert judge(TASK_DISPATCH, EXECUTING, look) == verified
    conflict = Evidence(Finding.CONFLICT, "task_receipt_conflict")
    for change in (
        {"task_id": "task-2"},
        {"number": 4},
        {"project_id": "prj-other"},
        {"dispatch_id": "dsp-2"},
    ):
        other = look._replace(resource=REVISION._replace(**change))
        assert judge(TASK_DISPATCH, EXECUTING, other) == conflict
    nothing = Found(None, None, None, None, stray=False)
    missing = Evidence(Finding.MISSING, "task_receipt_missing")
    assert judge(TASK_DISPATCH, EXECUTING, nothing) == missing
    assert judge(TASK_DISPATCH, EXECUTING, nothing._replace(stray=True)) == conflict


@pytest.mark.scenario(193, 195)
@pytest.mark.adr("0033", "2.1")
def test_absence_is_missing_and_a_run_without_a_receipt_is_a_conflict() -> None:
    """Neither says that nothing happened."""
    assert seen(Found(None, None, None, None, stray=False)) == MISSING
    assert seen(Found(None, None, MADE.run, MADE.attempt, stray=True)) == CONFLICT
    assert seen(Found(None, None, None, None, stray=True)) == CONFLICT


TAMPERED: list[dict[str, Any]] = [
    {"schema_version": 0}, {"schema_version": 2}, {"dispatch_id": "dsp-2"},
    {"approval_request_id": "apr-2"}, {"project_id": "prj-other"}, {"action_type": "task.publish"},
    {"action_digest": "0" * 64}, {"execution_attempt": 2}, {"execution_attempt": 0},
    {"execution_version": 3}, {"execution_version": 0}, {"execution_version": -1},
    {"started_at_ms": STARTED_MS - 1}, {"started_at_ms": STARTED_MS + 1},
    {"idempotency_key": "dsp-2"}, {"outcome": "failed"}, {"result_code": "approved_run_failed"},
    {"resource_type": "task_revision"}, {"resource_id": "run-2"},
    {"finished_at_ms": STARTED_MS - 1}, {"finished_at_ms": STARTED_MS + 6},
    {"created_at_ms": STARTED_MS + 6}, {"created_at_ms": STARTED_MS},
    {"finished_at_ms": STARTED_MS - 1, "created_at_ms": STARTED_MS - 1},
]  # fmt: skip


@pytest.mark.scenario(193, 194)
@pytest.mark.adr("0033", "3.1")
@pytest.mark.parametrize("change", TAMPERED)
def test_each_field_alone_spoils_a_receipt_even_under_its_new_digest(
    change: dict[str, Any],
) -> None:
    assert {name for tampered in TAMPERED for name in tampered} == set(ActionReceipt._fields)
    assert seen(found(RECEIPT._replace(**change))) == CONFLICT


@pytest.mark.scenario(194)
@pytest.mark.adr("0033", "3.1")
@pytest.mark.parametrize("digest", [None, "0" * 64, receipt_digest(receipt_bytes(R1))])
def test_a_receipt_under_another_digest_is_no_proof(digest: str | None) -> None:
    assert seen(found(digest=digest)) == CONFLICT


@pytest.mark.scenario(190, 194)
@pytest.mark.parametrize(
    ("version", "finding"),
    [
        (1, Finding.CONFLICT),
        (2, Finding.VERIFIED_SUCCEEDED),
        (3, Finding.VERIFIED_SUCCEEDED),
        (9, Finding.VERIFIED_SUCCEEDED),
    ],
)
def test_a_renewal_after_the_receipt_spoils_nothing_and_a_receipt_from_later_is_none(
    version: int, finding: Finding
) -> None:
    assert seen(found(), EXECUTING._replace(version=version)).finding is finding


@pytest.mark.scenario(190)
def test_a_receipt_of_any_earlier_version_is_as_good() -> None:
    for version in (1, 2):
        look = found(RECEIPT._replace(execution_version=version))
        assert seen(look).finding is Finding.VERIFIED_SUCCEEDED


@pytest.mark.scenario(194, 195, 203)
@pytest.mark.adr("0033", "3.1")
@pytest.mark.parametrize(
    ("resource", "attempt"),
    [
        (None, None),
        (None, MADE.attempt),
        (MADE.run, None),
        (MADE.run._replace(run_id="run-2"), MADE.attempt),
        (MADE.run._replace(idempotency_key="dsp-2"), MADE.attempt),
        (MADE.run._replace(triggered_by="approved-action:dsp-2"), MADE.attempt),
        (REVISION, MADE.attempt),
    ],
)
def test_a_receipt_whose_run_is_gone_or_relabelled_is_a_conflict(
    resource: Run | TaskRevision | None, attempt: Attempt | None
) -> None:
    assert seen(found(resource=resource, attempt=attempt)) == CONFLICT


@pytest.mark.adr("0033", "3.1")
def test_a_resource_of_another_kind_proves_nothing_whatever_its_name() -> None:
    """A revision that stands where the run of this action should be, and a run for a revision."""
    receipt = issue(RUN_DISPATCH, EXECUTING, resource_of_task(REVISION), STARTED_MS)
    assert seen(found(receipt, resource=REVISION)) == CONFLICT
    receipt = issue(TASK_DISPATCH, EXECUTING, "run-1", STARTED_MS)
    answer = judge(TASK_DISPATCH, EXECUTING, found(receipt))
    assert answer == Evidence(Finding.CONFLICT, "task_receipt_conflict")


@pytest.mark.parametrize("status", [ExecutionStatus.PENDING, ExecutionStatus.LEASED])
@pytest.mark.parametrize("look", [found(), Found(None, None, None, None, stray=False)])
def test_nothing_proves_what_never_started(status: ExecutionStatus, look: Found) -> None:
    assert seen(look, execution(status)) == CONFLICT


@pytest.mark.scenario(203)
def test_what_became_of_the_run_is_never_asked() -> None:
    later = MADE.run._replace(version=9, event_sequence=12)
    assert seen(found(resource=later)).finding is Finding.VERIFIED_SUCCEEDED


def test_no_finding_of_a_look_is_a_failure() -> None:
    """Every type names its resource, its success and three codes, and none for a failure."""
    assert set(WORDS) == {"run.create", "task.publish"}
    for words in WORDS.values():
        assert len(set(words)) == 5
