"""Approvals on SQLite: the domain decides, this file selects and stores."""

from collections.abc import Callable

from qinglong_edge.domain import action, approval
from qinglong_edge.domain import dispatch as dispatches
from qinglong_edge.domain.approval import ApprovalRefusal
from qinglong_edge.domain.authorization import FactKind
from qinglong_edge.domain.canonical import JsonObject, parse_object
from qinglong_edge.domain.decisions import Changed, Replayed
from qinglong_edge.domain.errors import DamagedError, RowDamagedError, UsageError
from qinglong_edge.domain.execution import Progress, Record, baseline, dispatch_of
from qinglong_edge.domain.limits import PREVIEW_BYTES_MAX
from qinglong_edge.domain.paging import Cursor, Page
from qinglong_edge.domain.policy import PolicyFence, Subject
from qinglong_edge.ports.probe import Step
from qinglong_edge.ports.repositories import ApprovalAnswer, Listing, Queue
from qinglong_edge.storage.sqlite import actions, facts, rows
from qinglong_edge.storage.sqlite.actions import SQL
from qinglong_edge.storage.sqlite.transaction import Database, Tx, Value

REPEATS_SHOWN = 8

_Rule = Callable[[approval.Approval], approval.Answer]


class _RolledBack(Exception):
    # Not an error: it carries a refusal out of a transaction, which it rolls back.
    def __init__(self, refusal: ApprovalRefusal) -> None:
        super().__init__(refusal)
        self.refusal = refusal


class SqliteApprovals:
    """Keep approvals and their plans in the one database."""

    def __init__(self, database: Database) -> None:
        """Work on an open database."""
        self._database = database

    def propose(self, event: approval.Propose) -> ApprovalAnswer:
        """Store a new request with its immutable plan and preview; one commit."""
        approval.check_propose(event)
        return self._database.write(Step.PROPOSE, lambda tx: _propose(tx, event))

    def decide(self, event: approval.Decide) -> ApprovalAnswer:
        """Approve or reject a pending request; one commit."""
        step = Step.APPROVE if event.approved else Step.REJECT
        return self._database.write(step, lambda tx: _decide(tx, event))

    def consume(self, event: approval.Consume) -> ApprovalAnswer:
        """Spend an approved request: dispatch and execution are born in the same commit."""
        return self._database.write(Step.CONSUME, lambda tx: _consume(tx, event))

    def approve_and_consume(
        self, decision: approval.Decide, consumption: approval.Consume
    ) -> ApprovalAnswer:
        """Do both transitions in one commit; a refusal of either stores nothing."""

        def both(tx: Tx) -> ApprovalAnswer:
            first = _decide(tx, decision)
            if isinstance(first, ApprovalRefusal):
                return first
            second = _consume(tx, consumption)
            if isinstance(second, ApprovalRefusal):
                raise _RolledBack(second)
            return second

        try:
            return self._database.write(Step.APPROVE_CONSUME, both)
        except _RolledBack as rolled_back:
            return rolled_back.refusal

    def cancel(self, event: approval.Cancel) -> ApprovalAnswer | dispatches.DispatchRefusal:
        """Withdraw an open request, or block its dispatch before the barrier; one commit."""
        return self._database.write(Step.CANCEL, lambda tx: _cancel(tx, event))

    def find(self, approval_request_id: str) -> Record | None:
        """Return the action of an approval id or a dispatch id; raises `DamagedError`."""
        found = self._database.read(lambda tx: actions.find(tx, approval_request_id))
        return None if found is None else found[1]

    def plan(self, approval_request_id: str) -> tuple[action.Plan, JsonObject] | None:
        """Return plan and preview after proving both digests; raises `DamagedError`."""
        row = self._database.read(lambda tx: tx.one(SQL["plan_of_id"], id=approval_request_id))
        if row is None or row["body"] is None:
            return None
        try:
            plan = action.plan_from_body(row["body"])
            preview = parse_object(row["preview"], "preview", most=PREVIEW_BYTES_MAX)
        except UsageError as error:
            raise DamagedError("plan_damaged", "a stored plan cannot be read") from error
        digests = (action.action_digest(plan), action.preview_digest(preview))
        if action.plan_body(plan) != row["body"] or digests != (
            row["action_digest"].hex(),
            row["preview_digest"].hex(),
        ):
            raise DamagedError("plan_damaged", "a stored plan does not match its digest")
        return plan, preview

    def repeated_by(self, dispatch_id: str) -> tuple[str, ...]:
        """Return the newest requests that name this dispatch as what they repeat."""
        found = self._database.read(
            lambda tx: tx.rows(SQL["repeated_by"], dispatch_id=dispatch_id, limit=REPEATS_SHOWN)
        )
        return tuple(row["approval_request_id"] for row in found)

    def page(self, listing: Listing) -> Page[Record]:
        """Return one keyset page of a queue, or of everything, newest first."""
        return self._database.read(lambda tx: _page(tx, listing))


def _propose(tx: Tx, event: approval.Propose) -> ApprovalAnswer:
    owner = tx.one(SQL["owner_of_id"], id=event.approval_request_id)
    if owner is not None:
        found = actions.find(tx, event.approval_request_id)
        if owner["kind"] != "approval" or found is None:
            return ApprovalRefusal.MUTATION_DRIFT
        known = approval.replay_propose(found[1].approval, event)
        return known if isinstance(known, ApprovalRefusal) else Replayed(found[1])
    seen = actions.fence(tx, event.project_id, event.requested_by)
    if seen is None or seen[1] != event.fence:
        return ApprovalRefusal.FENCE_CHANGED
    project = seen[0]
    openness = tx.one(
        SQL["count_open"],
        project=project,
        requested_by=str(event.requested_by),
        at_ms=tx.now.at_ms,
    )
    if openness is None:
        raise DamagedError("schema_damaged", "a count found nothing")
    digest = rows.blob(event.action.action_digest)
    unknown = tx.rows(SQL["unknown_outcomes"], action_digest=digest, tick=tx.now.tick)
    answer = approval.propose(
        event,
        approval.Openness(openness["by_requester"], openness["in_project"]),
        frozenset(row["dispatch_id"] for row in unknown),
        tx.now,
    )
    if isinstance(answer, ApprovalRefusal):
        return answer
    key = tx.insert(SQL["add_action"], **rows.new_action_columns(answer.after, project))
    tx.exactly_one(SQL["add_id"], id=event.approval_request_id, kind="approval", action=key)
    tx.exactly_one(SQL["add_plan"], action=key, body=event.body, preview=event.preview)
    return Changed(Record(answer.after, None, None, key))


def _decide(tx: Tx, event: approval.Decide) -> ApprovalAnswer:
    answer = _move(
        tx,
        event.approval_request_id,
        {event.decision_id: "decision"},
        (event.decided_by, event.fence),
        rule=lambda before: approval.decide(before, event, tx.now),
    )
    if isinstance(answer, Changed):
        fact = approval.decision_fact(answer.after.approval, event, tx.now)
        if fact is not None:
            facts.add(tx, answer.after.key, FactKind.DECISION, fact)
    return answer


def _consume(tx: Tx, event: approval.Consume) -> ApprovalAnswer:
    answer = _move(
        tx,
        event.approval_request_id,
        {event.consumption_id: "consumption", event.dispatch_id: "dispatch"},
        (event.requested_by, event.fence),
        rule=lambda before: approval.consume(before, event, tx.now),
    )
    if not isinstance(answer, Changed):
        return answer
    dispatch = dispatch_of(answer.after.approval)
    found = tx.one(SQL["owner_of_id"], id=event.dispatch_id)
    if dispatch is None or found is None:
        raise RowDamagedError("row_damaged", "a consumed approval has no dispatch")
    born = baseline(dispatch, tx.now)
    fields = rows.progress_columns(born)
    names = ("status", "version", "attempt_count", "eligible_tick", "updated_at_ms")
    tx.exactly_one(
        SQL["add_execution"],
        action=found["action"],
        max_attempts=born.execution.max_attempts,
        created_at_ms=born.execution.created_at_ms,
        **{name: fields[name] for name in names},
    )
    return Changed(answer.after._replace(dispatch=dispatch, progress=born))


def _move(
    tx: Tx,
    approval_request_id: str,
    ids: dict[str, str],
    acting: tuple[Subject, PolicyFence],
    *,
    rule: _Rule,
) -> ApprovalAnswer:
    """Find an approval, ask its rule, prove the acting subject's fence, take ids, store."""
    found = actions.find(tx, approval_request_id)
    if found is None or found[1].approval.approval_request_id != approval_request_id:
        taken = any(actions.taken(tx, name) for name in ids)
        return ApprovalRefusal.MUTATION_DRIFT if taken else ApprovalRefusal.NOT_FOUND
    key, record = found
    answer = rule(record.approval)
    if isinstance(answer, Replayed):
        return Replayed(record)
    if answer is ApprovalRefusal.MUTATION_DRIFT or any(actions.taken(tx, name) for name in ids):
        return ApprovalRefusal.MUTATION_DRIFT
    if isinstance(answer, ApprovalRefusal):
        return answer
    subject, expected = acting
    seen = actions.fence(tx, record.approval.project_id, subject)
    if seen is None or seen[1] != expected:
        return ApprovalRefusal.FENCE_CHANGED
    for name, kind in ids.items():
        tx.exactly_one(SQL["add_id"], id=name, kind=kind, action=key)
    actions.move_action(tx, key, record.approval, answer.after)
    return Changed(record._replace(approval=answer.after))


def _cancel(tx: Tx, event: approval.Cancel) -> ApprovalAnswer | dispatches.DispatchRefusal:
    found = actions.find(tx, event.approval_request_id)
    if found is None:
        return ApprovalRefusal.NOT_FOUND
    key, record = found
    event = event._replace(approval_request_id=record.approval.approval_request_id)
    blocked: Progress | None = None
    if record.progress is not None and record.approval.cancellation is None:
        ended = dispatches.cancel(record.progress, event.cancel_id, tx.now)
        if isinstance(ended, dispatches.DispatchRefusal):
            return ended
        blocked = ended.after
    answer = _move(
        tx,
        event.approval_request_id,
        {event.cancel_id: "cancel"},
        (event.cancelled_by, event.fence),
        rule=lambda before: approval.cancel(before, event, tx.now),
    )
    if not isinstance(answer, Changed) or blocked is None or record.progress is None:
        return answer
    actions.move_execution(tx, key, record.progress, blocked)
    return Changed(answer.after._replace(progress=blocked))


_LISTS = {
    Queue.PENDING: ("list_open", "expires_at_ms"),
    Queue.APPROVED: ("list_open", "expires_at_ms"),
    Queue.DUE: ("list_due", "eligible_tick"),
    Queue.EXECUTING: ("list_executing", "next_scan_tick"),
    Queue.RECOVERY_DUE: ("list_recovery_due", "next_scan_tick"),
    Queue.MANUAL_REQUIRED: ("list_manual", "key"),
}


def _page(tx: Tx, listing: Listing) -> Page[Record]:
    after = listing.after or Cursor(-1, -1)
    if listing.queue is None:
        before_key = after.key if listing.after else 2**63 - 1
        return actions.page(tx, "list_newest", listing.limit, "key", before_key=before_key)
    name, order = _LISTS[listing.queue]
    values: dict[str, Value] = {"after_order": after.order, "after_key": after.key}
    values |= {"tick": tx.now.tick, "at_ms": tx.now.at_ms, "state": listing.queue.value}
    wanted = {word: value for word, value in values.items() if f":{word}" in SQL[name]}
    return actions.page(tx, name, listing.limit, order, **wanted)
