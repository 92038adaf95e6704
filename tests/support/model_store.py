"""What the model keeps, and what its transactions do: dicts around the domain's functions.

Several sessions share one `ModelStore`. A transaction works on a draft; one that changed nothing is
no commit, one that raised leaves no trace. The ports on top stand in `model.py`.
"""

from collections.abc import Callable
from threading import RLock
from typing import NamedTuple, TypeVar

from qinglong_edge.domain import approval as approvals
from qinglong_edge.domain import dispatch as rules
from qinglong_edge.domain import policy as policies
from qinglong_edge.domain.approval import Approval, ApprovalRefusal
from qinglong_edge.domain.decisions import Changed, Replayed
from qinglong_edge.domain.errors import RowDamagedError
from qinglong_edge.domain.execution import Dispatch, Progress, Record, baseline, dispatch_of
from qinglong_edge.domain.machines import NOT_STARTED, OPEN_APPROVALS, TERMINAL, ControlStatus
from qinglong_edge.domain.machines import ExecutionStatus as Status
from qinglong_edge.domain.policy import (
    BindRole,
    PolicyFence,
    PolicyRefusal,
    Project,
    ProjectStatus,
    Role,
    RoleBinding,
    Subject,
)
from qinglong_edge.domain.resolution import Case
from qinglong_edge.domain.run import Admitted
from qinglong_edge.domain.task import TaskRevision
from qinglong_edge.domain.tick import ClockRefusal, Now, Trust, refuse_word, sighting_after
from qinglong_edge.ports.repositories import (
    ApprovalAnswer,
    DispatchAnswer,
    Settlement,
    TrustClock,
)
from tests.support.builders import ANA, PROJECT
from tests.support.clock import FakeClocks, StoredTime

Result = TypeVar("Result")
History = tuple[RoleBinding, ...]


class State(NamedTuple):
    """Hold everything a commit may change; the values are immutable, so copies are shallow."""

    actions: dict[int, Record]
    ids: dict[str, tuple[str, int]]
    plans: dict[int, tuple[bytes, bytes]]
    projects: dict[str, Project]
    histories: dict[tuple[str, Subject], History]
    damaged: dict[int, bool]
    receipts: dict[int, tuple[bytes, str]]
    revisions: dict[int, TaskRevision]
    runs: dict[int, Admitted]

    def copy(self) -> "State":
        return State(
            dict(self.actions),
            dict(self.ids),
            dict(self.plans),
            dict(self.projects),
            dict(self.histories),
            dict(self.damaged),
            dict(self.receipts),
            dict(self.revisions),
            dict(self.runs),
        )


class RolledBack(Exception):
    def __init__(self, refusal: ApprovalRefusal) -> None:
        super().__init__(refusal)
        self.refusal = refusal


class ModelStore:
    """Hold one project whose owner is a user, and every transaction."""

    def __init__(self, clocks: FakeClocks) -> None:
        self.time = StoredTime(clocks)
        self.owners = {ANA}
        self.commits = 0
        at_ms = self.time.mark.wall_ms
        project = Project(PROJECT, PROJECT, PROJECT, ProjectStatus.ACTIVE, 1, at_ms, at_ms)
        active = policies.BindingState.ACTIVE
        first = RoleBinding(PROJECT, ANA, 1, active, Role.OWNER, "init", ANA, at_ms)
        self.state = State(
            {}, {}, {}, {PROJECT: project}, {(PROJECT, ANA): (first,)}, {}, {}, {}, {}
        )
        self._lock = RLock()

    def write(self, body: Callable[["Tx"], Result]) -> Result:
        with self._lock:
            if self.time.now().trust is Trust.SETTLED:
                self._once(settle, settled=True)
            return self._once(body)

    def trust_clock(
        self, body: Callable[["Tx"], Settlement | ClockRefusal]
    ) -> Settlement | ClockRefusal:
        """Run `body`; where it refuses, nothing was stored."""
        with self._lock:
            now = self.time.now()
            draft = self.state.copy()
            answer = body(Tx(draft, now))
            if isinstance(answer, Settlement):
                self.state = draft
                self.commits += 1
                self.time.settle(now)
            return answer

    def read(self, body: Callable[["Tx"], Result]) -> Result:
        with self._lock:
            return body(Tx(self.state, self.time.now()))

    def waits(self) -> bool:
        """Tell whether the clock rule itself has something to store."""
        now, seen = self.time.now(), self.time.sighting
        trusted = now.trust is Trust.TRUSTED
        due = None if trusted else sighting_after(now.reading, now.epoch, seen)
        return now.trust is Trust.SETTLED or due != seen

    def _once(self, body: Callable[["Tx"], Result], *, settled: bool = False) -> Result:
        now = self.time.now()
        draft = self.state.copy()
        result = body(Tx(draft, now))
        if draft != self.state or self.waits():
            self.state = draft
            self.commits += 1
            if settled:
                self.time.settle(now)
            else:
                self.time.commit(now)
        return result


class Tx:
    """Do what several ports share, inside one transaction."""

    def __init__(self, state: State, now: Now) -> None:
        self.state = state
        self.now = now

    def find(self, name: str) -> Record | None:
        kind, key = self.state.ids.get(name, ("", 0))
        return self.believed(key) if kind in {"approval", "dispatch"} else None

    def believed(self, key: int) -> Record:
        if key in self.state.damaged:
            raise RowDamagedError("row_damaged", "an action's row cannot be believed", {"row": key})
        return self.state.actions[key]

    def records(self) -> list[Record]:
        """Return every action that can be believed, oldest first."""
        held = self.state.actions.items()
        return [record for key, record in sorted(held) if key not in self.state.damaged]

    def fence(self, project_id: str, subject: Subject) -> PolicyFence | None:
        project = self.state.projects.get(project_id)
        history = self.state.histories.get((project_id, subject), ())
        if project is None:
            return None
        return PolicyFence(project.version, history[-1].version if history else None)

    def take(self, name: str, kind: str, key: int) -> None:
        self.state.ids[name] = (kind, key)

    def move(self, record: Record, progress: Progress) -> Record:
        after = record._replace(progress=progress)
        self.state.actions[record.key] = after
        return after

    def apply(
        self, dispatch_id: str, rule: Callable[[Dispatch, Progress], rules.Answer]
    ) -> DispatchAnswer:
        found, case = self.find(dispatch_id), self.case(dispatch_id)
        if found is None or case is None:
            return rules.DispatchRefusal.NOT_FOUND
        answer = rule(case.dispatch, case.progress)
        if isinstance(answer, Changed):
            return Changed(self.move(found, answer.after))
        return Replayed(found) if isinstance(answer, Replayed) else answer

    def case(self, dispatch_id: str) -> Case | None:
        """Return a dispatch by its own id, as its rules see it."""
        found = self.find(dispatch_id)
        if found is None or found.dispatch is None or found.progress is None:
            return None
        if found.dispatch.dispatch_id != dispatch_id:
            return None
        return Case(found.dispatch, found.progress, found.resolution)

    def unknown(self, action_digest: str) -> frozenset[str]:
        """Name the dispatches of a digest past their barrier whose outcome nobody knows."""
        found = set()
        for record in self.records():
            if record.dispatch is None or record.progress is None:
                continue
            execution, control = record.progress
            out = execution.status is Status.EXECUTING and (
                execution.lease is None
                or self.now.tick >= execution.lease.expires_tick
                or (control is not None and control.status is ControlStatus.MANUAL_REQUIRED)
            )
            given_up = execution.status is Status.BLOCKED and execution.started_at_ms is not None
            if record.approval.action.action_digest == action_digest and (out or given_up):
                found.add(record.dispatch.dispatch_id)
        return frozenset(found)


def move_approval(
    tx: Tx,
    name: str,
    ids: dict[str, str],
    acting: tuple[Subject, PolicyFence],
    *,
    rule: Callable[[Approval], approvals.Answer],
) -> ApprovalAnswer:
    """Ask the rule of an approval, prove the acting subject's fence, take ids, store."""
    found = tx.find(name)
    taken = any(each in tx.state.ids for each in ids)
    if found is None or found.approval.approval_request_id != name:
        return ApprovalRefusal.MUTATION_DRIFT if taken else ApprovalRefusal.NOT_FOUND
    answer = rule(found.approval)
    if isinstance(answer, Replayed):
        return Replayed(found)
    if answer is ApprovalRefusal.MUTATION_DRIFT or taken:
        return ApprovalRefusal.MUTATION_DRIFT
    if isinstance(answer, ApprovalRefusal):
        return answer
    subject, expected = acting
    if tx.fence(found.approval.project_id, subject) != expected:
        return ApprovalRefusal.FENCE_CHANGED
    for each, kind in ids.items():
        tx.take(each, kind, found.key)
    after = found._replace(approval=answer.after)
    tx.state.actions[found.key] = after
    return Changed(after)


def propose(tx: Tx, event: approvals.Propose) -> ApprovalAnswer:
    if event.approval_request_id in tx.state.ids:
        found = tx.find(event.approval_request_id)
        if found is None or found.approval.approval_request_id != event.approval_request_id:
            return ApprovalRefusal.MUTATION_DRIFT
        known = approvals.replay_propose(found.approval, event)
        return Replayed(found) if isinstance(known, Replayed) else known
    if tx.fence(event.project_id, event.requested_by) != event.fence:
        return ApprovalRefusal.FENCE_CHANGED
    opened = [
        each.approval
        for each in tx.records()
        if each.approval.state in OPEN_APPROVALS and each.approval.expires_at_ms > tx.now.at_ms
    ]
    mine = [each for each in opened if each.requested_by == event.requested_by]
    answer = approvals.propose(
        event,
        approvals.Openness(len(mine), len(opened)),
        tx.unknown(event.action.action_digest),
        tx.now,
    )
    if isinstance(answer, ApprovalRefusal):
        return answer
    key = len(tx.state.actions) + 1
    tx.take(event.approval_request_id, "approval", key)
    tx.state.plans[key] = (event.body, event.preview)
    record = Record(answer.after, None, None, key)
    tx.state.actions[key] = record
    return Changed(record)


def decide(tx: Tx, event: approvals.Decide) -> ApprovalAnswer:
    return move_approval(
        tx,
        event.approval_request_id,
        {event.decision_id: "decision"},
        (event.decided_by, event.fence),
        rule=lambda before: approvals.decide(before, event, tx.now),
    )


def consume(tx: Tx, event: approvals.Consume) -> ApprovalAnswer:
    answer = move_approval(
        tx,
        event.approval_request_id,
        {event.consumption_id: "consumption", event.dispatch_id: "dispatch"},
        (event.requested_by, event.fence),
        rule=lambda before: approvals.consume(before, event, tx.now),
    )
    if not isinstance(answer, Changed):
        return answer
    born = dispatch_of(answer.after.approval)
    if born is None:
        raise RowDamagedError("row_damaged", "a consumed approval has no dispatch")
    return Changed(tx.move(answer.after._replace(dispatch=born), baseline(born, tx.now)))


def decide_and_consume(
    tx: Tx, decision: approvals.Decide, consumption: approvals.Consume
) -> ApprovalAnswer:
    first = decide(tx, decision)
    if isinstance(first, ApprovalRefusal):
        return first
    second = consume(tx, consumption)
    if isinstance(second, ApprovalRefusal):
        raise RolledBack(second)
    return second


def cancel(tx: Tx, event: approvals.Cancel) -> ApprovalAnswer | rules.DispatchRefusal:
    found = tx.find(event.approval_request_id)
    if found is None:
        return ApprovalRefusal.NOT_FOUND
    blocked = None
    if found.progress is not None and found.approval.cancellation is None:
        if found.progress.execution.status not in NOT_STARTED:
            over = found.progress.execution.status in TERMINAL
            refusal = rules.DispatchRefusal
            return refusal.ALREADY_TERMINAL if over else refusal.ALREADY_STARTED
        if event.cancel_id == found.progress.execution.result_mutation_id:
            return ApprovalRefusal.MUTATION_DRIFT
        ended = rules.cancel(found.progress, event.cancel_id, tx.now)
        if isinstance(ended, rules.DispatchRefusal):
            return ended
        blocked = ended.after
    answer = move_approval(
        tx,
        found.approval.approval_request_id,
        {event.cancel_id: "cancel"},
        (event.cancelled_by, event.fence),
        rule=lambda before: approvals.cancel(before, event, tx.now),
    )
    if not isinstance(answer, Changed) or blocked is None:
        return answer
    return Changed(tx.move(answer.after, blocked))


def bind(
    tx: Tx, event: BindRole, owners: set[Subject]
) -> Changed[RoleBinding] | Replayed[RoleBinding] | PolicyRefusal:
    histories = tx.state.histories
    for (project_id, _), history in histories.items():
        for row in history:
            if (project_id, row.mutation_id) == (event.project_id, event.mutation_id):
                same = policies.same_binding(row, event)
                return Replayed(row) if same else PolicyRefusal.MUTATION_DRIFT
    if event.project_id not in tx.state.projects:
        return PolicyRefusal.PROJECT_NOT_FOUND
    seen = tx.fence(event.project_id, event.changed_by)
    if event.authority is not None and seen != event.authority.fence:
        return PolicyRefusal.FENCE_CHANGED
    history = histories.get((event.project_id, event.subject), ())
    row_or_refusal = policies.append_binding(
        history[-1] if history else None, event, tx.now.stamp()
    )
    if isinstance(row_or_refusal, PolicyRefusal):
        return row_or_refusal
    bound = {
        subject
        for (project_id, subject), rows in histories.items()
        if project_id == event.project_id and rows[-1].role is Role.OWNER and subject in owners
    }
    if policies.leaves_no_owner(bound, event.subject, event.role):
        return PolicyRefusal.LAST_OWNER
    histories[(event.project_id, event.subject)] = (*history, row_or_refusal)
    return Changed(row_or_refusal)


def trust_clock(tx: Tx, event: TrustClock) -> Settlement | ClockRefusal:
    refusal = refuse_word(tx.now)
    if refusal is None and tx.fence(event.project_id, event.subject) != event.fence:
        refusal = ClockRefusal.FENCE_CHANGED
    return settle(tx) if refusal is None else refusal


def settle(tx: Tx) -> Settlement:
    closed = blocked = 0
    for record in tx.records():
        if record.approval.state in OPEN_APPROVALS:
            voided = record._replace(approval=approvals.void(record.approval))
            tx.state.actions[record.key] = voided
            closed += 1
        elif record.progress is not None and record.progress.execution.status in NOT_STARTED:
            tx.move(record, rules.void(record.progress, rules.START_DEADLINE_PASSED, tx.now))
            blocked += 1
    return Settlement(closed, blocked, 0, tx.now)
