"""Providers written for tests, and a reconciler that asks them on a store of the suite."""

import threading
from collections.abc import Callable
from typing import Any, NamedTuple, cast

from qinglong_edge.domain.action import TASK_PUBLISH, Capability
from qinglong_edge.domain.evidence import Evidence
from qinglong_edge.domain.execution import Record
from qinglong_edge.domain.tick import Reading
from qinglong_edge.ports.ambient import Clocks
from qinglong_edge.ports.evidence import EvidenceContext, EvidenceProvider
from qinglong_edge.ports.repositories import Recoveries
from qinglong_edge.runtime.execution import Desk
from qinglong_edge.runtime.page_loop import Batch, Counts
from qinglong_edge.runtime.reconciler import Reconciler
from tests.contract.recovery_story import RESOLVER, publish_of, started_effect
from tests.contract.story import Story, changed, expire_of
from tests.support.clock import FakeClocks
from tests.support.entropy import CounterEntropy
from tests.unit.runtime.carrying import PATIENCE_S, desk_of

LOOK_MS = 2_000


class Provider:
    """Look for one type as the test says; every context is remembered."""

    def __init__(
        self,
        answer: Callable[[EvidenceContext], Any],
        action_type: str = TASK_PUBLISH,
        capability: Capability = Capability.AUTOMATIC,
    ) -> None:
        self.action_type = action_type
        self.capability = capability
        self.asked: list[EvidenceContext] = []
        self._answer = answer

    def inspect(self, context: EvidenceContext) -> Evidence:
        self.asked.append(context)
        seen: Evidence = self._answer(context)
        return seen


class HandClocks:
    """Keep deadlines in the test's hand as well: a provider moves time once it is waited for."""

    def __init__(self, fake: FakeClocks) -> None:
        self._fake = fake
        self._waited_for = threading.Event()

    def read(self) -> Reading:
        return self._fake.read()

    def monotonic_ms(self) -> int:
        now_ms = self._fake.monotonic_ms()
        self._waited_for.set()
        return now_ms

    def advance(self, ms: int) -> None:
        """Let time pass for whoever waits by now."""
        assert self._waited_for.wait(PATIENCE_S)
        self._fake.advance(ms)


class Known:
    """Find providers by type."""

    def __init__(self, *providers: EvidenceProvider, look_ms: int = LOOK_MS) -> None:
        self._providers = {each.action_type: each for each in providers}
        self._look_ms = look_ms

    def provider(self, action_type: str) -> EvidenceProvider | None:
        return self._providers.get(action_type)

    def inspect_deadline_ms(self, action_type: str) -> int:
        return self._look_ms


class Watched:
    """Pass every call on to a store and remember it; `answers` and `errors` replace some."""

    def __init__(self, real: Recoveries) -> None:
        self.calls: list[str] = []
        self.answers: dict[str, object] = {}
        self.errors: dict[str, Exception] = {}
        self._real = real

    def __getattr__(self, name: str) -> Callable[..., object]:
        def call(*args: object) -> object:
            self.calls.append(name)
            if name in self.errors:
                raise self.errors[name]
            return self.answers[name] if name in self.answers else getattr(self._real, name)(*args)

        return call


class Lookout(NamedTuple):
    """Hold a reconciler together with the calls that it makes."""

    reconciler: Reconciler
    recoveries: Watched
    desk: Desk

    def page(self, limit: int = 16, may_begin: Callable[[], bool] = lambda: True) -> Batch:
        return self.reconciler.reconcile_page(None, limit, may_begin)

    def counts(self, limit: int = 16, may_begin: Callable[[], bool] = lambda: True) -> Counts:
        """Work one page and return the counters that are not zero."""
        return {name: n for name, n in self.page(limit, may_begin).counts.items() if n}


def lookout(
    story: Story,
    *providers: EvidenceProvider,
    clocks: Clocks | None = None,
    look_ms: int = LOOK_MS,
    owner: str = RESOLVER,
) -> Lookout:
    """Return a resolver; its deadlines run on real time unless `clocks` are given."""
    watched = Watched(story.ports.recoveries)
    draws = CounterEntropy(int.from_bytes(owner.encode()))  # two resolvers draw different ids
    desk = desk_of(story, clocks, owner)._replace(entropy=draws)
    known = Known(*providers, look_ms=look_ms)
    return Lookout(Reconciler(desk, cast("Recoveries", watched), known), watched, desk)


def unknown_publish(story: Story, *numbers: int) -> list[Record]:
    """Start actions of an automatic type that then give no answer: their leases are over."""
    left = []
    for n in numbers or (1,):
        started_effect(story, n, publish_of(n))
        left.append(changed(story.ports.dispatches.expire(expire_of(n))))
    return left
