"""What looking for evidence asks of an action type (contract 9.1).

A provider only observes. It has no way to execute, resend or repair anything, and whatever it does
besides returning an `Evidence` (raising, overrunning its deadline) settles nothing.
"""

from typing import NamedTuple, Protocol

from qinglong_edge.domain.action import Capability
from qinglong_edge.domain.evidence import Evidence
from qinglong_edge.domain.execution import Dispatch, Execution


class EvidenceContext(NamedTuple):
    """Hold what a provider may know: immutable identity, and the execution as it was claimed."""

    dispatch: Dispatch
    execution: Execution
    idempotency_key: str
    observed_at_ms: int


class EvidenceProvider(Protocol):
    """Look for evidence of one action type."""

    @property
    def action_type(self) -> str:
        """Return the type's name."""
        ...

    @property
    def capability(self) -> Capability:
        """Return `automatic` only where verified evidence may settle an outcome by itself."""
        ...

    def inspect(self, context: EvidenceContext) -> Evidence:
        """Look; no side effect, and never a conclusion from logs or from an absence."""
        ...


class Providers(Protocol):
    """Find the evidence provider of a type."""

    def provider(self, action_type: str) -> EvidenceProvider | None:
        """Return the provider, or None where nobody can look."""
        ...

    def inspect_deadline_ms(self, action_type: str) -> int:
        """Return how long looking may take."""
        ...
