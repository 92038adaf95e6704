"""Believe the wall clock on a person's word: the settlement of the clock rule, at once."""

from qinglong_edge.domain import tick
from qinglong_edge.domain.dispatch import START_DEADLINE_PASSED
from qinglong_edge.domain.tick import ClockRefusal
from qinglong_edge.ports.repositories import Settlement, TrustClock
from qinglong_edge.storage.sqlite import actions
from qinglong_edge.storage.sqlite.transaction import Database, Tx


class _Refused(Exception):
    # Not an error: it carries a refusal out of a transaction, which it rolls back.
    def __init__(self, refusal: ClockRefusal) -> None:
        super().__init__(refusal)
        self.refusal = refusal


class SqliteClock:
    """Keep the time that is believed in the one database."""

    def __init__(self, database: Database) -> None:
        """Work on an open database."""
        self._database = database

    def trust(self, event: TrustClock) -> Settlement | ClockRefusal:
        """Settle the clock and close what it makes unbelievable; one commit.

        A clock that is believed, or never will be, is told by a look.
        """

        def settle(tx: Tx) -> Settlement:
            refusal = tick.refuse_word(tx.now)
            if refusal is not None:
                raise _Refused(refusal)
            seen = actions.fence(tx, event.project_id, event.subject)
            if seen is None or seen[1] != event.fence:
                raise _Refused(ClockRefusal.FENCE_CHANGED)
            return actions.settle(tx, START_DEADLINE_PASSED)

        refusal = self._database.read(lambda tx: tick.refuse_word(tx.now))
        if refusal is not None:
            return refusal
        try:
            return self._database.trust_clock(settle)
        except _Refused as refused:
            return refused.refusal
