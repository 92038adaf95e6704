"""The contract of an evidence provider, as something that can be run (ADR-0033, 2 to 4).

Only what passes it may settle outcomes by itself. The author of a provider writes a `Bench`, which
stages situations in the provider's own world; `failures` plays every clause on it and returns those
that do not hold. It proves what a provider answers and that looking changes nothing there. It does
not prove that the world of the bench is the real one.
"""

import enum
from collections.abc import Iterator
from typing import NamedTuple, Protocol

from qinglong_edge.domain import ids, limits
from qinglong_edge.domain.action import ACTION_TYPES, Capability, is_automatic
from qinglong_edge.domain.errors import UsageError
from qinglong_edge.domain.evidence import VERIFIED, Evidence, check_evidence
from qinglong_edge.domain.recovery import Finding
from qinglong_edge.executor.invoke import Outstanding, Raised, Returned
from qinglong_edge.ports.ambient import Clocks
from qinglong_edge.ports.evidence import EvidenceContext, EvidenceProvider

LOOKS = 100


class Situation(enum.Enum):
    """Name what a bench can stage besides a tampered proof."""

    NOTHING = "the action was started and left no proof"
    COMPLETE = "a whole proof of exactly this action"
    UNKNOWN_MEMBER = "a whole proof that says more than its shape allows, vouched for as it is"
    OVERSIZE = "a whole proof of more than 4 KiB, vouched for as it is"
    UNAVAILABLE = "nobody can tell: the source of proofs does not answer"


class Tampered(enum.Enum):
    """Name the member that somebody changed in a whole proof.

    Only this member differs; what vouches for the proof (digest, signature) was left as it was.
    """

    SCHEMA_VERSION = "schema_version"
    DISPATCH_ID = "dispatch_id"
    APPROVAL_REQUEST_ID = "approval_request_id"
    PROJECT_ID = "project_id"
    ACTION_TYPE = "action_type"
    ACTION_DIGEST = "action_digest"
    ATTEMPT = "attempt"
    STARTED_AT = "started_at_ms"
    IDEMPOTENCY_KEY = "idempotency_key"
    OUTCOME = "outcome"
    RESULT_CODE = "result_code"
    FINISHED_AT = "finished_at_ms"
    RECEIPT_ID = "receipt_id"


class Bench(Protocol):
    """Stage what a provider may meet; written by the author of the provider."""

    @property
    def provider(self) -> EvidenceProvider:
        """Return the provider under test; it looks at the world as it was staged last."""
        ...

    def stage(self, situation: Situation | Tampered) -> EvidenceContext:
        """Make the world look so, whatever it was; return the started action that it is about."""
        ...

    def fingerprint(self) -> object:
        """Return all that the provider could change; equal if and only if nothing changed.

        It answers in every situation, `UNAVAILABLE` included.
        """
        ...


class Failure(NamedTuple):
    """Say which clause does not hold, and what was seen instead."""

    clause: str
    seen: str


def failures(
    bench: Bench, clocks: Clocks, *, deadline_ms: int = limits.HANDLER_DEADLINE_MS_DEFAULT
) -> list[Failure]:
    """Play every clause; an empty list means that the provider keeps the contract.

    What the provider does ends up in the list. What the bench raises goes up.
    """
    trial = _Trial(bench, Outstanding(clocks), deadline_ms)
    return list(dict.fromkeys(trial.play()))


_SITUATIONS: dict[Situation, tuple[str, frozenset[Finding]]] = {
    Situation.NOTHING: ("absence_is_missing", frozenset({Finding.MISSING})),
    Situation.COMPLETE: ("whole_proof_is_verified", VERIFIED),
    Situation.UNKNOWN_MEMBER: ("unknown_member_is_conflict", frozenset({Finding.CONFLICT})),
    Situation.OVERSIZE: ("oversize_is_conflict", frozenset({Finding.CONFLICT})),
    Situation.UNAVAILABLE: ("unavailable_concludes_nothing", frozenset({Finding.UNAVAILABLE})),
}
_MANUAL_ONLY = ("manual_only_never_verifies", frozenset(Finding) - VERIFIED)
_NOT_THIS = frozenset({Finding.CONFLICT, Finding.MISSING})


class _Trial:
    """Ask one provider about one situation after another."""

    def __init__(self, bench: Bench, outstanding: Outstanding, deadline_ms: int) -> None:
        self._bench = bench
        self._outstanding = outstanding
        self._deadline_ms = deadline_ms

    def play(self) -> Iterator[Failure]:
        """Yield what does not hold, clause after clause."""
        yield from self._declares()
        automatic = self._bench.provider.capability is Capability.AUTOMATIC
        for situation, of_automatic in _SITUATIONS.items():
            context = self._bench.stage(situation)
            yield from _values_only(context)
            clause, expected = of_automatic if automatic else _MANUAL_ONLY
            may_raise = situation is Situation.UNAVAILABLE or not automatic
            yield from self._look(context, clause, expected, may_raise=may_raise)
        yield from self._looks_again()
        if automatic:
            yield from self._is_bound()

    def _declares(self) -> Iterator[Failure]:
        """Yield a failure where the provider is automatic and its action type may not be."""
        clause = "declares_its_type_and_capability"
        said: object = self._bench.provider.capability
        try:
            name = ids.check_ident(self._bench.provider.action_type, "action_type")
        except UsageError:
            yield Failure(clause, "an action type that is no identifier")
            return
        if not isinstance(said, Capability):
            yield Failure(clause, "a capability that is none")
        elif said is Capability.AUTOMATIC and name in ACTION_TYPES and not is_automatic(name):
            yield Failure(clause, f"{said.value} for {name}")

    def _is_bound(self) -> Iterator[Failure]:
        """Change every field of a proof, and of the action: it counts for one action only."""
        for tampered in Tampered:
            context = self._bench.stage(tampered)
            clause = f"tampered_{tampered.value}_is_conflict"
            yield from self._look(context, clause, frozenset({Finding.CONFLICT}))
        context = self._bench.stage(Situation.COMPLETE)
        for name, other in _others(context):
            yield from self._look(other, f"another_{name}_is_not_verified", _NOT_THIS)

    def _looks_again(self) -> Iterator[Failure]:
        """Look a hundred times: the world stays as it was, and the answer too."""
        for situation in (Situation.NOTHING, Situation.COMPLETE):
            context = self._bench.stage(situation)
            before = self._bench.fingerprint()
            seen = {_told(self._ask(context)) for _ in range(LOOKS)}
            if len(seen) != 1:
                yield Failure("looking_again_says_the_same", " / ".join(sorted(seen)))
            if self._bench.fingerprint() != before:
                yield Failure("looking_changes_nothing", f"a change after {LOOKS} looks")

    def _look(
        self,
        context: EvidenceContext,
        clause: str,
        expected: frozenset[Finding],
        *,
        may_raise: bool = False,
    ) -> Iterator[Failure]:
        before = self._bench.fingerprint()
        ending = self._ask(context)
        if self._bench.fingerprint() != before:
            yield Failure("looking_changes_nothing", f"a change where {clause} was tried")
        if not isinstance(ending, Returned):
            if not (may_raise and isinstance(ending, Raised)):
                yield Failure(clause, _told(ending))
            return
        wrong = _malformed(ending.value)
        if wrong is not None:
            yield wrong
        elif ending.value.finding not in expected:
            yield Failure(clause, _told(ending))

    def _ask(self, context: EvidenceContext) -> object:
        """Look as the runtime does: in a thread of its own, and not for ever."""
        provider = self._bench.provider
        return self._outstanding.call(
            provider.action_type,
            lambda: provider.inspect(context),
            deadline_ms=self._deadline_ms,
            tick_ms=self._deadline_ms,
            on_tick=lambda: None,
        )


def _others(context: EvidenceContext) -> Iterator[tuple[str, EvidenceContext]]:
    """Yield the contexts of actions that differ from a proven one in a single field."""
    dispatch, execution = context.dispatch, context.execution
    action, started_at_ms = dispatch.action, execution.started_at_ms or 0
    name = "somebody-else"
    digest = "0" * 63 + ("1" if action.action_digest.endswith("0") else "0")
    for field, other in {
        "dispatch_id": dispatch._replace(dispatch_id=name),
        "approval_request_id": dispatch._replace(approval_request_id=name),
        "project_id": dispatch._replace(project_id=name),
        "action_type": dispatch._replace(action=action._replace(action_type=name)),
        "action_digest": dispatch._replace(action=action._replace(action_digest=digest)),
    }.items():
        yield field, context._replace(dispatch=other, idempotency_key=other.dispatch_id)
    yield "idempotency_key", context._replace(idempotency_key=name)
    for field, run in {
        "attempt": execution._replace(attempt_count=execution.attempt_count + 1),
        "started_at_ms": execution._replace(started_at_ms=started_at_ms + 1),
        "start": execution._replace(started_at_ms=None),
    }.items():
        yield field, context._replace(execution=run)


def _values_only(context: EvidenceContext) -> Iterator[Failure]:
    """Yield a failure where a provider gets more than values: nothing that it could act with."""
    values = (*context, *context.dispatch, *context.dispatch.action, *context.execution)
    if type(context) is not EvidenceContext or any(callable(value) for value in values):
        yield Failure("context_cannot_execute", "a context with more than values")


def _malformed(answer: object) -> Failure | None:
    """Return what is wrong with the shape of an answer; a verdict without its proof has a name."""
    try:
        check_evidence(answer)
    except UsageError as error:
        named = error.details.get("field") == "evidence_digest"
        if named and type(answer) is Evidence and answer.evidence_digest is None:
            return Failure("verified_names_a_digest", f"{answer.finding.value} without a digest")
        return Failure("answers_with_evidence", f"a malformed {type(answer).__name__}")
    return None


def _told(ending: object) -> str:
    """Return what was seen; of what a provider said only proven words are repeated."""
    if isinstance(ending, Raised):
        return f"raised {ending.kind}"
    if not isinstance(ending, Returned):
        return "no answer within the deadline"
    wrong = _malformed(ending.value)
    if wrong is not None:
        return wrong.seen
    finding, code, digest = ending.value
    return " ".join([finding.value, code, *([] if digest is None else [digest])])
