"""Stress: executors, resolvers and persons race for the same outcomes on one SQLite file.

Whatever an action's fate, it is executed once, and its outcome is settled once: by its answer, by
its late answer, by evidence or by a person.
"""

import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

from tests.contract.adapters import make_store, ports_of
from tests.contract.recovery_story import propose_effect, publish_of
from tests.contract.story import changed, consume_of, decide_of
from tests.stress.recovery_worker import Fate, by_person, fate_of
from tests.stress.test_eight_processes import counted, executed, go, workers
from tests.stress.worker import SteadyClocks, open_store
from tests.support.clock import FakeClocks
from tests.support.crash_oracle import View, check_view, read_view

ACTIONS = 64
PARTS = {"executor": 3, "resolver": 3, "person": 2}
LATE = ("late_Changed", "late_Replayed", "late_DispatchRefusal")
ENDS = {
    Fate.DONE: "succeeded",
    Fate.ANSWER_LOST: "succeeded",
    Fate.NO_EFFECT: "blocked",
    Fate.ANSWER_LATE: "succeeded",
}


@pytest.fixture
def path(tmp_path: Path) -> str:
    """Return a store that holds approved tasks to publish, sixteen of each fate."""
    made = str(tmp_path / "state.db")
    make_store(made, FakeClocks(boot_ms=SteadyClocks().read().boot_ms))
    opened = open_store(made, SteadyClocks())
    ports = ports_of(opened)
    for n in range(ACTIONS):
        event = propose_effect(n, publish_of(n))._replace(lifetime_ms=86_400_000)
        changed(ports.approvals.propose(event))
        consume = consume_of(n, action_digest=event.action.action_digest)
        changed(ports.approvals.approve_and_consume(decide_of(n), consume))
    opened.close()
    return made


def seen(path: str) -> View:
    with closing(sqlite3.connect(path)) as connection:
        return read_view(connection, Counter())


@pytest.mark.adr("0009", "4")
@pytest.mark.slow
@pytest.mark.scenario(149, 229)
@pytest.mark.adr("0033", "5.3")
@pytest.mark.adr("0033", "6.1")
def test_each_outcome_of_a_race_is_settled_once(path: str, tmp_path: Path) -> None:
    log = str(tmp_path / "log")
    with workers(path, log, **PARTS) as running:
        go(running)
        counts = [counted(each) for each in running]
    total = sum(counts, Counter[str]())
    view = seen(path)
    check_view(view)
    assert set(Counter(executed(log)).values()) == {1}
    for row in view.actions.values():
        name = str(row.dispatch_id)
        fate, source = fate_of(name), row.beside.source
        assert row.status == ENDS[fate], row
        assert row.beside.effects == (fate is not Fate.NO_EFFECT), row
        assert (fate is Fate.DONE) <= (source is None), row
        assert (source == "human") <= by_person(name), row
        late = fate is Fate.ANSWER_LATE and source is None
        assert (row.result_id == f"late-{name}") == late, row
    sources = Counter(row.beside.source for row in view.actions.values())
    stored = sum(str(row.result_id).startswith("late-") for row in view.actions.values())
    assert sources["automatic_evidence"] == total["verified_succeeded"]
    assert (sources["human"], stored) == (total["settled"], total["late_Changed"])
    assert sum(n for word, n in total.items() if word in LATE) == ACTIONS // len(Fate)
    check_raced(counts, sources)
    opened = open_store(path, SteadyClocks())
    assert ports_of(opened).overview.problems() == []
    opened.close()


def check_raced(counts: list[Counter[str]], sources: Counter[str | None]) -> None:
    """Prove that the race was one: everybody who could settle did, and somebody was too late."""
    assert sum(each["started"] > 0 for each in counts) > 1
    assert min(sources["human"], sources["automatic_evidence"]) > 0, sources
    total = sum(counts, Counter[str]())
    lost = ("already_terminal", "already_resolved", "recovery_fence_rejected", *LATE[1:])
    assert sum(total[word] for word in lost) > 0, total
    print(dict(total), dict(sources))
