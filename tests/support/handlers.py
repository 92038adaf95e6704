"""What most handlers written for tests have in common: nothing to pin, no effect in the store."""

from qinglong_edge.domain.action import Plan
from qinglong_edge.domain.effect import Effect


class Plain:
    """Leave a plan as it is, and have no effect that the store could have."""

    def pin(self, plan: Plan, known: Plan | None) -> Plan:
        return plan

    def effect(self, plan: Plan) -> Effect | None:
        return None
