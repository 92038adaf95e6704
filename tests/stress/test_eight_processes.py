"""Stress: eight real processes race on one SQLite file, in normal locking mode.

README: ask for this suite by its path, `python tools/test.py tests/stress`; it is not part of
`make test`. Each process runs the real dispatcher with a handler that appends to one file, so the
file, not the database, says how often an action was executed. The second test kills three of them.
"""

import json
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from threading import Timer

import pytest

from qinglong_edge.domain.machines import ExecutionStatus
from qinglong_edge.ports.repositories import Listing
from tests.contract.adapters import Ports, make_store, ports_of
from tests.contract.story import changed, consume_of, decide_of, names, propose_of
from tests.stress.worker import SteadyClocks, dispatcher, open_store
from tests.support.clock import FakeClocks

ROOT = Path(__file__).resolve().parents[2]
PROCESSES, KILLED, ACTIONS = 8, 3, 200
PATIENCE_S = 60
Worker = subprocess.Popen[str]


@pytest.fixture
def path(tmp_path: Path) -> str:
    """Return a store that holds 200 consumed approvals."""
    made = str(tmp_path / "state.db")
    make_store(made, FakeClocks(boot_ms=SteadyClocks().read().boot_ms))
    opened = open_store(made, SteadyClocks())
    ports = ports_of(opened)
    for n in range(ACTIONS):
        changed(ports.approvals.propose(propose_of(n, lifetime_ms=86_400_000)))
        changed(ports.approvals.approve_and_consume(decide_of(n), consume_of(n)))
    opened.close()
    return made


@contextmanager
def workers(path: str, log: str, **parts: int) -> Iterator[list[Worker]]:
    """Start eight processes that will go at once; none outlives the test.

    `parts` says how many play each part; without it all of them dispatch.
    """
    module = "tests.stress.recovery_worker" if parts else "tests.stress.worker"
    command = [sys.executable, "-m", module, path, log]
    parts = parts or {"owner": PROCESSES}
    names = [f"{part}-{n}" for part, number in parts.items() for n in range(number)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    running = [
        subprocess.Popen([*command, name], cwd=ROOT, text=True, **pipes)  # type: ignore[call-overload]
        for name in names
    ]
    assert len(running) == PROCESSES
    try:
        for each in running:
            assert each.stdout.readline() == "ready\n", each.stderr.read()
        yield running
    finally:
        for each in running:
            each.kill()
            each.communicate()


def go(running: list[Worker]) -> None:
    for each in running:
        assert each.stdin is not None
        each.stdin.write("go\n")
        each.stdin.flush()


def counted(worker: Worker) -> Counter[str]:
    out, error = worker.communicate(timeout=PATIENCE_S)
    assert (worker.returncode, error) == (0, "")
    return Counter(json.loads(out))


def executed(log: str) -> list[str]:
    return Path(log).read_text(encoding="ascii").splitlines()


def states(ports: Ports) -> dict[str, ExecutionStatus]:
    found: dict[str, ExecutionStatus] = {}
    after = None
    while True:
        page = ports.approvals.page(Listing(None, after, 64))
        assert page.damaged == 0
        for record in page.items:
            assert record.dispatch is not None
            assert record.progress is not None
            found[record.dispatch.dispatch_id] = record.progress.execution.status
        if page.cursor is None:
            return found
        after = page.cursor


@pytest.mark.adr("0005", "11")
@pytest.mark.slow
@pytest.mark.scenario(229)
def test_two_hundred_actions_are_each_executed_once(path: str, tmp_path: Path) -> None:
    log = str(tmp_path / "log")
    with workers(path, log) as running:
        go(running)
        counts = [counted(each) for each in running]
    total = sum(counts, Counter[str]())
    assert Counter(executed(log)) == Counter(f"dsp-{n}" for n in range(ACTIONS))
    assert (total["started"], total["succeeded"]) == (ACTIONS, ACTIONS)
    assert (total["unavailable"], total["recovery_required"]) == (0, 0)
    assert sum(each["started"] > 0 for each in counts) > 1, "nobody raced"
    opened = open_store(path, SteadyClocks())
    assert set(states(ports_of(opened)).values()) == {ExecutionStatus.SUCCEEDED}
    opened.close()


@pytest.mark.slow
@pytest.mark.scenario(201, 229)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_killed_processes_leave_nothing_doubled_and_nothing_lost(
    path: str, tmp_path: Path, seed: int
) -> None:
    log = str(tmp_path / "log")
    random = Random(seed)
    with workers(path, log) as running:
        go(running)
        for victim in running[:KILLED]:
            Timer(random.uniform(0.05, 1.0), victim.kill).start()
        ended = [each.wait(PATIENCE_S) for each in running[:KILLED]]
        for each in running[KILLED:]:
            assert counted(each)["recovery_required"] == 0
    assert -signal.SIGKILL in ended, "nobody was killed in time"
    opened = open_store(path, SteadyClocks())
    ports = ports_of(opened)
    ports.dispatches.settle_dead_owners("last")
    last = dispatcher(opened, log, "last")
    while last.dispatch_page(None, 8, lambda: True).counts["scanned"]:
        pass
    once = Counter(executed(log))
    assert set(once.values()) == {1}
    after = states(ports)
    unknown = {name for name, status in after.items() if status is ExecutionStatus.EXECUTING}
    assert set(after) == {f"dsp-{n}" for n in range(ACTIONS)}
    assert set(after.values()) <= {ExecutionStatus.SUCCEEDED, ExecutionStatus.EXECUTING}
    assert len(unknown) <= KILLED
    assert set(once) >= set(after) - unknown
    assert set(names(ports.recoveries.list_due(None, 64).items)) == unknown
    opened.close()
