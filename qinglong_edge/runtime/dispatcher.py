"""Claim, inspect, start, execute, complete: one page of due dispatches (contract 7).

A page of N actions costs N + 1 commits: the claim of the page carries the first barrier, and each
result carries the next barrier. An action on this database has its effect and its verdict in the
commit of its barrier. Whatever cannot be merged falls back to a commit of its own. The
order never changes: a barrier is durable before its `execute`, and nothing is executed whose start
did not answer.
"""

from collections.abc import Callable
from typing import NamedTuple

from qinglong_edge.domain import backoff, limits
from qinglong_edge.domain import dispatch as rules
from qinglong_edge.domain.decisions import Replayed
from qinglong_edge.domain.effect import Whole
from qinglong_edge.domain.errors import STORE_FAILED, QinglongError
from qinglong_edge.domain.execution import Dispatch, Execution, Fence, Record, fence_of
from qinglong_edge.domain.machines import ExecutionStatus
from qinglong_edge.domain.paging import Cursor
from qinglong_edge.executor.invoke import Returned
from qinglong_edge.ports.handlers import Handlers
from qinglong_edge.ports.repositories import Approvals, Begin, DispatchAnswer, Stored
from qinglong_edge.runtime import readiness
from qinglong_edge.runtime.execution import Desk, Late, Run, verdict
from qinglong_edge.runtime.page_loop import Batch, Counts
from qinglong_edge.runtime.readiness import Candidate, LetGo

COUNTERS = (
    "scanned", "claimed", "started", "succeeded", "failed", "blocked", "retrying", "deferred",
    "recovery_required", "already_terminal", "unavailable", "exhausted", "put_back", "damaged",
)  # fmt: skip

_Begun = DispatchAnswer | LetGo | None


class _Item(NamedTuple):
    """Hold one listed dispatch on its way through the page."""

    dispatch: Dispatch
    execution: Execution
    token: str
    ready: Candidate | LetGo

    @property
    def span_ms(self) -> int:
        return self.ready.span_ms if isinstance(self.ready, Candidate) else 0


class Dispatcher:
    """Work one page at a time, strictly one item after another."""

    def __init__(
        self, desk: Desk, approvals: Approvals, handlers: Handlers, *, whole: bool = True
    ) -> None:
        """Take the desk of one lease owner; nothing runs until a page is asked for.

        Without `whole` an action on this database takes the road of all others: barrier, effect and
        verdict in commits of their own.
        """
        self._whole = whole
        self._desk = desk
        self._approvals = approvals
        self._handlers = handlers
        self._late: list[Late] = []
        self._unrecorded: list[rules.Complete] = []
        self._held: rules.Complete | None = None
        self._counts: Counts = {}

    def dispatch_page(
        self, after: Cursor | None, limit: int, may_begin: Callable[[], bool]
    ) -> Batch:
        """List, claim and work one page; `may_begin` is asked before each item.

        What listing raises goes up. Everything later is counted, never raised.
        """
        self._counts = dict.fromkeys(COUNTERS, 0)
        self._record_late_answers()
        listed = self._desk.dispatches.list_due(after, limit)
        self._counts["scanned"] = len(listed.items) + listed.damaged
        self._counts["damaged"] = listed.damaged
        items, cut = self._fitting(listed.items)
        cursor = listed.cursor if cut is None else cut
        if not items:
            return Batch(self._counts, cursor)
        if not may_begin():
            return Batch(self._counts, cursor, stopped=True)
        try:
            stopped = self._work(
                sorted(items, key=lambda item: item.dispatch.dispatch_id), may_begin
            )
        finally:
            self._flush()
        self._record_unrecorded()
        return Batch(self._counts, cursor, stopped)

    def _fitting(self, records: list[Record]) -> tuple[list[_Item], Cursor | None]:
        """Return as many items as one lease can cover, and where the rest begins."""
        items: list[_Item] = []
        span_ms = limits.PAGE_SLACK_MS
        last: Cursor | None = None
        for record in records:
            if record.dispatch is None or record.progress is None:
                continue
            execution = record.progress.execution
            ready = readiness.candidate(record.dispatch, self._approvals, self._handlers)
            item = _Item(record.dispatch, execution, self._desk.entropy(16).hex(), ready)
            if items and span_ms + item.span_ms > limits.LEASE_MS_MAX:
                return items, last
            span_ms += item.span_ms
            items.append(item)
            last = Cursor(execution.eligible_tick or 0, record.key)
        return items, None

    def _work(self, items: list[_Item], may_begin: Callable[[], bool]) -> bool:
        """Claim the page, then carry its items; return whether it was told to stop."""
        span_ms = limits.PAGE_SLACK_MS + sum(item.span_ms for item in items)
        lease_ms = min(span_ms, limits.LEASE_MS_MAX)
        lease_end_ms = self._desk.clocks.monotonic_ms() + lease_ms
        claimed, begun = self._claim(items, lease_ms)
        for index, (item, execution) in enumerate(claimed):
            left_ms = lease_end_ms - self._desk.clocks.monotonic_ms()
            started = begun if index == 0 and item is items[0] else None
            if started is None and (not may_begin() or left_ms < item.span_ms):
                self._put_back(claimed[index:])
                return True
            self._carry(item, execution, started, left_ms)
        return False

    def _claim(
        self, items: list[_Item], lease_ms: int
    ) -> tuple[list[tuple[_Item, Execution]], _Begun]:
        """Lease the page in one commit; the first item's barrier rides along when it is ready.

        Returns what was claimed, and what the first item's look or barrier answered.
        """
        claims = tuple(
            rules.Claim(item.dispatch.dispatch_id, self._desk.owner, item.token, lease_ms)
            for item in items
        )
        first = items[0]
        why = first.ready if isinstance(first.ready, LetGo) else self._inspect(first.ready)
        fence = Fence(self._desk.owner, first.token, first.execution.version + 1)
        start = self._begin(first, fence) if why is None else None
        try:
            answers, begun = self._desk.dispatches.claim_page(claims, start)
        except STORE_FAILED:
            self._counts["unavailable"] += len(items)
            return [], None
        claimed = []
        for item, answer in zip(items, answers, strict=True):
            if item is first and isinstance(begun, Replayed):
                self._counts["claimed"] += 1  # a repeat of the commit found it done, barrier too
                claimed.append((item, item.execution))
                continue
            execution = self._count_claim(answer)
            if execution is not None:
                claimed.append((item, execution))
        return claimed, why if begun is None else begun

    def _count_claim(self, answer: DispatchAnswer) -> Execution | None:
        if isinstance(answer, rules.DispatchRefusal):
            self._counts[_REFUSED_CLAIMS.get(answer, "deferred")] += 1
            return None
        progress = answer.after.progress
        if progress is None or progress.execution.status is ExecutionStatus.BLOCKED:
            code = None if progress is None else progress.execution.last_result_code
            spent = code == rules.ATTEMPTS_EXHAUSTED
            self._counts["exhausted" if spent else "blocked"] += 1
            return None
        self._counts["claimed"] += 1
        return progress.execution

    def _carry(self, item: _Item, execution: Execution, begun: _Begun, left_ms: int) -> None:
        """Take one claimed item to its verdict, or let it go."""
        fence = Fence(self._desk.owner, item.token, execution.version)
        if begun is None and isinstance(item.ready, Candidate):
            begun = self._inspect(item.ready) or self._start(self._begin(item, fence))
        if begun is rules.DispatchRefusal.CLOCK_UNTRUSTED:
            self._put_back([(item, execution)])
        elif isinstance(item.ready, LetGo):
            self._release(item, fence, item.ready)
        elif isinstance(begun, LetGo):
            self._release(item, fence, begun)
        else:
            self._execute(item.ready, begun, left_ms)

    def _inspect(self, item: Candidate) -> LetGo | None:
        """Look; a result that waits for the next barrier does not wait for a slow look."""
        return readiness.inspect(
            item,
            self._desk.outstanding,
            tick_ms=limits.COMPLETE_HELD_MS_MAX,
            on_tick=self._flush,
        )

    def _begin(self, item: _Item, fence: Fence) -> Begin:
        """Return the barrier to ask for; the store has the effect behind it where it can."""
        dispatch = item.dispatch
        start = rules.Start(
            dispatch.dispatch_id,
            dispatch.approval_request_id,
            dispatch.action.action_digest,
            fence,
        )
        effect = item.ready.effect if isinstance(item.ready, Candidate) else None
        if effect is None or not self._whole:
            return start
        return Whole(start, self._desk.draw_id(), effect)

    def _start(self, event: Begin) -> DispatchAnswer | None:
        """Pass the barrier, together with the result that waits for it; None where nothing answers.

        After a failure of the merged commit both halves are tried alone: the start is the identical
        command, so a hidden success answers `Replayed` and is ours to execute, once.
        """
        held, self._held = self._held, None
        if held is not None:
            try:
                done, started = self._desk.dispatches.complete(held, event)
            except QinglongError:
                self._record(held)
            else:
                self._count_verdict(done)
                return started
        try:
            return self._desk.dispatches.start(event)
        except STORE_FAILED:
            return None

    def _execute(self, item: Candidate, started: DispatchAnswer | None, left_ms: int) -> None:
        """Execute behind a barrier that answered; anything else executes nothing."""
        if started is None or isinstance(started, rules.DispatchRefusal):
            self._counts["unavailable" if started is None else "deferred"] += 1
            return
        progress = started.after.progress
        fence = None if progress is None else fence_of(progress.execution)
        if progress is None or fence is None:
            self._count_ended(started)
            return
        self._counts["started"] += 1
        run = Run(self._desk, item, progress.execution, fence)
        self._held = run.execute(max(1, min(left_ms, limits.LEASE_MS_MAX)))
        if self._held is None:
            self._expire(item.dispatch.dispatch_id, run)

    def _expire(self, dispatch_id: str, run: Run) -> None:
        """Hand an outcome without an answer to recovery; keep the way to a late one."""
        self._counts["recovery_required"] += 1
        fence = run.fence
        try:
            self._desk.dispatches.expire(rules.Expire(dispatch_id, fence))
            fence = fence._replace(version=fence.version + 1)
        except STORE_FAILED:
            self._counts["unavailable"] += 1
        if run.late is not None:
            self._late.append(run.late._replace(fence=fence))

    def _release(self, item: _Item, fence: Fence, why: LetGo) -> None:
        self._flush()
        if not why.spend:
            at_ms = self._desk.clocks.read().wall_ms
            wait_ms = backoff.waiting_retry_ms(item.dispatch, at_ms)
        else:
            wait_ms = backoff.retry_after_ms(item.execution.attempt_count + 1)
        event = rules.Release(
            item.dispatch.dispatch_id, fence, self._desk.draw_id(), why.code,
            wait_ms if why.retry else None, why.spend,
        )  # fmt: skip
        try:
            answer = self._desk.dispatches.release(event)
        except STORE_FAILED:
            answer = rules.DispatchRefusal.FENCE_REJECTED
        self._counts[_released(answer)] += 1

    def _put_back(self, claimed: list[tuple[_Item, Execution]]) -> None:
        """Free what was not reached, in one commit."""
        self._flush()
        events = tuple(
            rules.PutBack(
                item.dispatch.dispatch_id,
                Fence(self._desk.owner, item.token, execution.version),
            )
            for item, execution in claimed
        )
        try:
            answers = self._desk.dispatches.put_back(events)
        except STORE_FAILED:
            self._counts["unavailable"] += len(events)
            return
        for answer in answers:
            refused = isinstance(answer, rules.DispatchRefusal)
            self._counts["unavailable" if refused else "put_back"] += 1

    def _flush(self) -> None:
        """Record the held result now, in a commit of its own."""
        held, self._held = self._held, None
        if held is not None:
            self._record(held)

    def _record(self, event: rules.Complete) -> None:
        try:
            answer = self._desk.dispatches.complete(event)[0]
        except STORE_FAILED:
            self._unrecorded.append(event)
            return
        self._count_verdict(answer)

    def _record_unrecorded(self) -> None:
        """Try once more what the storage would not take; then recovery has it."""
        waiting, self._unrecorded = self._unrecorded, []
        for event in waiting:
            try:
                self._count_verdict(self._desk.dispatches.complete(event)[0])
            except STORE_FAILED:
                self._counts["unavailable"] += 1
                self._counts["recovery_required"] += 1

    def _record_late_answers(self) -> None:
        """Record what overrun handlers said since; the fence decides whether it counts."""
        out, self._late = self._late, []
        for late in out:
            ending = late.ending.late()
            if ending is None:
                self._late.append(late)
            elif isinstance(ending, Returned):
                event = verdict(ending, late.dispatch_id, late.fence, self._desk.draw_id)
                if event is not None:
                    self._record(event)

    def _count_ended(self, started: Stored) -> None:
        """Count what ended in the commit of its barrier: blocked there, or done as a whole."""
        progress = started.after.progress
        if progress is not None and progress.execution.started_at_ms is not None:
            self._counts["started"] += 1
        self._count_verdict(started)

    def _count_verdict(self, answer: DispatchAnswer) -> None:
        """Count an answer; a refused one comes too late: somebody settled it, or took it over."""
        if isinstance(answer, rules.DispatchRefusal) or answer.after.progress is None:
            self._counts["already_terminal"] += 1
        else:
            self._counts[answer.after.progress.execution.status.value] += 1


_REFUSED_CLAIMS = {
    rules.DispatchRefusal.NOT_FOUND: "unavailable",
    rules.DispatchRefusal.RECOVERY_REQUIRED: "recovery_required",
    rules.DispatchRefusal.ALREADY_TERMINAL: "already_terminal",
}


def _released(answer: DispatchAnswer) -> str:
    if isinstance(answer, rules.DispatchRefusal) or answer.after.progress is None:
        return "unavailable"
    waits = answer.after.progress.execution.status is ExecutionStatus.RETRY_WAIT
    return "retrying" if waits else "blocked"
