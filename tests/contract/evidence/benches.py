"""Two benches for the kit: receipts in a real database, and a shelf in memory for seeded faults."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from qinglong_edge.actions.database import ReceiptEvidence
from qinglong_edge.actions.evidence_kit import Situation, Tampered
from qinglong_edge.domain.action import TASK_PUBLISH, Capability
from qinglong_edge.domain.canonical import canonical_bytes, sha256_hex
from qinglong_edge.domain.effect import Effect
from qinglong_edge.domain.errors import UnavailableError
from qinglong_edge.domain.evidence import Evidence
from qinglong_edge.domain.limits import RECEIPT_BYTES_MAX
from qinglong_edge.domain.machines import ExecutionStatus
from qinglong_edge.domain.recovery import Finding
from qinglong_edge.ports.evidence import EvidenceContext
from qinglong_edge.ports.handlers import HandlerAnswer
from tests.contract.adapters import FaultyConnection, SqliteRepositories, copied, dump, spoil
from tests.contract.recovery_story import (
    done_effect,
    perform_of,
    publish_of,
    run_of,
    started_effect,
)
from tests.contract.story import Story, changed, expire_of
from tests.support.builders import dispatch, execution
from tests.support.clock import FakeClocks

MEMBERS = {
    Tampered.SCHEMA_VERSION: "schemaVersion",
    Tampered.DISPATCH_ID: "dispatchId",
    Tampered.APPROVAL_REQUEST_ID: "approvalRequestId",
    Tampered.PROJECT_ID: "projectId",
    Tampered.ACTION_TYPE: "actionType",
    Tampered.ACTION_DIGEST: "actionDigest",
    Tampered.ATTEMPT: "executionAttempt",
    Tampered.STARTED_AT: "startedAtMs",
    Tampered.IDEMPOTENCY_KEY: "idempotencyKey",
    Tampered.OUTCOME: "outcome",
    Tampered.RESULT_CODE: "resultCode",
    Tampered.FINISHED_AT: "finishedAtMs",
    Tampered.RECEIPT_ID: "resourceId",
}


def tampered(proof: dict[str, Any], member: str) -> dict[str, Any]:
    """Return the proof with another value in one member."""
    value = proof[member]
    return {**proof, member: value + 1 if isinstance(value, int) else f"{value[:-1]}x"}


class ReceiptBench:
    """Stage receipts of one action type in a real database, a fresh one for each situation."""

    def __init__(self, template: str, folder: Path, action_type: str) -> None:
        self._template = template
        self._folder = folder
        self._type = action_type
        self._store: SqliteRepositories | None = None

    @property
    def provider(self) -> ReceiptEvidence:
        return ReceiptEvidence(self._type, self.store.ports.effects)

    @property
    def store(self) -> SqliteRepositories:
        """Return the store as it was staged last; before that an empty one."""
        if self._store is None:
            self._store = SqliteRepositories(copied(self._template, self._folder), FakeClocks())
        return self._store

    def stage(self, situation: Situation | Tampered) -> EvidenceContext:
        self.close()
        story = Story(self.store)
        effect = self._effect(story)
        started_effect(story, 1, effect)
        if situation is not Situation.NOTHING:
            assert isinstance(story.ports.effects.perform(perform_of(1, effect)), HandlerAnswer)
        record = changed(story.ports.dispatches.expire(expire_of(1)))
        self._spoil(situation)
        assert record.dispatch is not None
        assert record.progress is not None
        return EvidenceContext(record.dispatch, record.progress.execution, "dsp-1", 0)

    def fingerprint(self) -> object:
        return dump(self.store.path), self.store.commits()

    def close(self) -> None:
        if self._store is not None:
            self._store.close()
            self._store = None

    def _effect(self, story: Story) -> Effect:
        if self._type == TASK_PUBLISH:
            return publish_of(1)
        done_effect(story, 2, publish_of(2))
        return run_of(1, of=2)

    def _spoil(self, situation: Situation | Tampered) -> None:
        connection = self.store.database.connection
        assert isinstance(connection, FaultyConnection)
        match situation:
            case Tampered():
                self._rewrite(tampered(self._receipt(), MEMBERS[situation]), vouched=False)
            case Situation.UNKNOWN_MEMBER:
                self._rewrite({**self._receipt(), "note": "more"}, vouched=True)
            case Situation.OVERSIZE:
                self._rewrite({**self._receipt(), "resultCode": "x" * RECEIPT_BYTES_MAX})
            case Situation.UNAVAILABLE:
                connection.fail_in = 0
            case Situation.NOTHING | Situation.COMPLETE:
                pass

    def _receipt(self) -> dict[str, Any]:
        found = self.store.ports.effects.receipt("dsp-1")
        assert found is not None
        assert found.body is not None
        proof: dict[str, Any] = json.loads(found.body)
        return proof

    def _rewrite(self, proof: dict[str, Any], *, vouched: bool = True) -> None:
        body = canonical_bytes(proof)
        digest = f", evidence_digest = X'{sha256_hex(body)}'" if vouched else ""
        one = "WHERE action = (SELECT key FROM actions WHERE dispatch_id = 'dsp-1')"
        spoil(self.store.path, f"UPDATE action_receipts SET body = X'{body.hex()}'{digest} {one}")


class Shelf:
    """Hold at most one proof, and who vouches for it; `touched` counts what changed the world."""

    def __init__(self) -> None:
        self.body: bytes | None = None
        self.digest = ""
        self.reachable = True
        self.touched = 0


class Honest:
    """Look at the shelf and keep every clause; a fault overrides one step."""

    action_type = TASK_PUBLISH
    capability = Capability.AUTOMATIC

    def __init__(self, shelf: Shelf) -> None:
        self.shelf = shelf

    def inspect(self, context: EvidenceContext) -> Evidence:
        if not self.shelf.reachable:
            return self.unreachable()
        if self.shelf.body is None:
            return self.absent()
        proof = json.loads(self.shelf.body)
        sound = self.fits(self.shelf.body) and self.exact(proof) and self.vouched(proof)
        if not sound or not self.bound(proof, context):
            return Evidence(Finding.CONFLICT, "proof_conflict")
        return self.verdict(sha256_hex(self.shelf.body))

    def unreachable(self) -> Evidence:
        raise UnavailableError("source_unreachable", "the source does not answer")

    def absent(self) -> Evidence:
        return Evidence(Finding.MISSING, "proof_missing")

    def fits(self, body: bytes) -> bool:
        return len(body) <= RECEIPT_BYTES_MAX

    def exact(self, proof: dict[str, Any]) -> bool:
        return set(proof) == set(MEMBERS.values())

    def vouched(self, proof: dict[str, Any]) -> bool:
        return sha256_hex(canonical_bytes(proof)) == self.shelf.digest

    def bound(self, proof: dict[str, Any], context: EvidenceContext) -> bool:
        known = identity(context)
        return all(proof[name] == known[name] for name in known)

    def verdict(self, digest: str) -> Evidence:
        return Evidence(Finding.VERIFIED_SUCCEEDED, "proof_verified", digest)


def identity(context: EvidenceContext) -> dict[str, Any]:
    """Return what a proof must say about an action."""
    known, run = context.dispatch, context.execution
    return {
        "schemaVersion": 1,
        "dispatchId": known.dispatch_id,
        "approvalRequestId": known.approval_request_id,
        "projectId": known.project_id,
        "actionType": known.action.action_type,
        "actionDigest": known.action.action_digest,
        "executionAttempt": run.attempt_count,
        "startedAtMs": run.started_at_ms,
        "idempotencyKey": context.idempotency_key,
    }


def whole(context: EvidenceContext) -> dict[str, Any]:
    """Return the proof of an action."""
    done = {"outcome": "succeeded", "resultCode": "done", "finishedAtMs": 7, "resourceId": "rev-1"}
    return {**identity(context), **done}


class ShelfBench:
    """Stage proofs on a shelf for a provider of the test."""

    def __init__(self, make: type[Honest]) -> None:
        self.shelf = Shelf()
        self.provider = make(self.shelf)
        known = dispatch(action=dispatch().action._replace(action_type=TASK_PUBLISH))
        run = execution(ExecutionStatus.EXECUTING)
        self.context = EvidenceContext(known, run, known.dispatch_id, 0)

    def stage(self, situation: Situation | Tampered) -> EvidenceContext:
        proof = whole(self.context)
        self.shelf.reachable = situation is not Situation.UNAVAILABLE
        if situation is Situation.UNKNOWN_MEMBER:
            proof["note"] = "more"
        if situation is Situation.OVERSIZE:
            proof["resultCode"] = "x" * RECEIPT_BYTES_MAX
        self.shelf.digest = sha256_hex(canonical_bytes(proof))
        if isinstance(situation, Tampered):
            proof = tampered(proof, MEMBERS[situation])
        self.shelf.body = None if situation is Situation.NOTHING else canonical_bytes(proof)
        return self.context

    def fingerprint(self) -> object:
        return dict(vars(self.shelf))


@contextmanager
def receipt_bench(template: str, folder: Path, action_type: str) -> Iterator[ReceiptBench]:
    """Offer a bench whose last store is closed in the end."""
    made = ReceiptBench(template, folder, action_type)
    try:
        yield made
    finally:
        made.close()
