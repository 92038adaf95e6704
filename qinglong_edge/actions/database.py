"""What the actions on this database share: their effect by way of the store, and its proof.

Their evidence is the receipt that was written in the transaction of the effect, so they are
`automatic`: there is a receipt exactly when there is an effect (ADR-0033, 4).
"""

from qinglong_edge.domain import receipt as receipts
from qinglong_edge.domain.action import Capability, Plan
from qinglong_edge.domain.dispatch import DispatchRefusal
from qinglong_edge.domain.effect import FENCE_INVALID, Effect, Perform
from qinglong_edge.domain.errors import RowDamagedError
from qinglong_edge.domain.evidence import Evidence
from qinglong_edge.domain.execution import Outcome
from qinglong_edge.domain.ids import invalid
from qinglong_edge.domain.recovery import Finding
from qinglong_edge.ports.effects import Effects
from qinglong_edge.ports.evidence import EvidenceContext
from qinglong_edge.ports.handlers import HandlerAnswer, HandlerContext


def require_no_files(plan: Plan) -> None:
    """Refuse files: nothing of the file system takes part; raises `UsageError`."""
    if plan.files:
        raise invalid("plan.files", f"mean nothing to {plan.action_type}")


def perform(effects: Effects, context: HandlerContext, effect: Effect) -> HandlerAnswer:
    """Have the effect in a commit of its own, behind a barrier that stands.

    What the storage does not take is raised: then nobody knows, and the receipt tells.
    """
    event = Perform(context.dispatch.dispatch_id, context.fence, effect)
    answer = effects.perform(event)
    if isinstance(answer, DispatchRefusal):
        return HandlerAnswer(Outcome.FAILED, FENCE_INVALID)
    return answer


class ReceiptEvidence:
    """Look for the receipt of one action type."""

    def __init__(self, action_type: str, effects: Effects) -> None:
        """Take the type and where its receipts are."""
        self._type = action_type
        self._effects = effects

    @property
    def action_type(self) -> str:
        """Return the type's name."""
        return self._type

    @property
    def capability(self) -> Capability:
        """Return `automatic`: the receipt is written with the effect or not at all."""
        return Capability.AUTOMATIC

    def inspect(self, context: EvidenceContext) -> Evidence:
        """Compare receipt and resource with the dispatch; raises where the storage cannot tell."""
        dispatch = context.dispatch
        words = receipts.WORDS[self._type]
        conflict = Evidence(Finding.CONFLICT, words.conflict)
        same = dispatch.action.action_type == self._type
        if not same or context.idempotency_key != dispatch.dispatch_id:
            return conflict
        try:
            found = self._effects.receipt(dispatch.dispatch_id)
        except RowDamagedError:
            return conflict
        if found is None:
            return conflict
        return receipts.judge(dispatch, context.execution, found)
