"""Whatever a handler does, its caller gets one of four values in time."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from qinglong_edge.executor.ambient import SystemClocks
from qinglong_edge.executor.invoke import (
    Ending,
    NotCalled,
    Outstanding,
    Overran,
    Raised,
    Returned,
)
from tests.package.source_tree import ROOT

CLOCKS = SystemClocks()
PATIENCE_S = 10


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """Hold handlers back; opened at the end, so that no thread outlives its test."""
    gate = threading.Event()
    yield gate
    gate.set()
    for thread in threading.enumerate():
        if thread.name == "handler":
            thread.join(PATIENCE_S)


def nothing() -> None:
    pass


def invoke(work: Callable[[], Any], deadline_ms: int = 10_000) -> Ending[Any]:
    return call(work, deadline_ms=deadline_ms, tick_ms=60_000, on_tick=nothing)


def call(work: Callable[[], Any], **times: Any) -> Ending[Any]:
    return Outstanding(CLOCKS).call("any.type", work, **times)


def test_a_value_comes_back_from_a_daemon_thread() -> None:
    ending = invoke(threading.current_thread)
    assert isinstance(ending, Returned)
    assert ending.value.daemon
    assert ending.value is not threading.current_thread()
    assert repr(Returned(1)) == "Returned(1)"


def test_a_fast_handler_is_not_waited_for_any_longer() -> None:
    start_ms = CLOCKS.monotonic_ms()
    for _ in range(200):
        assert isinstance(invoke(nothing), Returned)
    assert CLOCKS.monotonic_ms() - start_ms < 1_000


@pytest.mark.scenario(116)
@pytest.mark.adr("0005", "3")
@pytest.mark.parametrize(
    "error", [ValueError("secret"), SystemExit(3), KeyboardInterrupt(), MemoryError()]
)
def test_what_a_handler_raises_is_no_answer(error: BaseException) -> None:
    def work() -> None:
        raise error

    ending = invoke(work)
    assert isinstance(ending, Raised)
    assert ending.kind == type(error).__name__
    assert ending.place.startswith("test_invoke.py:")
    assert "secret" not in repr(ending)


def test_a_handler_that_calls_sys_exit_ends_nothing_but_itself() -> None:
    ending = invoke(lambda: sys.exit(0))
    assert isinstance(ending, Raised)
    assert ending.kind == "SystemExit"


def test_a_handler_that_overruns_is_left_alone_and_may_answer_late(gate: threading.Event) -> None:
    def work() -> str:
        gate.wait(PATIENCE_S)
        return "late"

    start_ms = CLOCKS.monotonic_ms()
    ending = invoke(work, deadline_ms=30)
    assert 30 <= CLOCKS.monotonic_ms() - start_ms < 2_000
    assert isinstance(ending, Overran)
    assert ending.late() is None
    gate.set()
    ending._running.ended.wait(PATIENCE_S)
    late = ending.late()
    assert isinstance(late, Returned)
    assert late.value == "late"


def test_the_tick_runs_in_the_callers_thread_while_the_handler_works(gate: threading.Event) -> None:
    ticks: list[threading.Thread] = []

    def on_tick() -> None:
        ticks.append(threading.current_thread())
        if len(ticks) == 3:
            gate.set()

    ending = call(
        lambda: gate.wait(PATIENCE_S),
        deadline_ms=10_000,
        tick_ms=5,
        on_tick=on_tick,
    )
    assert isinstance(ending, Returned)
    assert ending.value is True
    assert ticks == [threading.current_thread()] * 3


def test_a_slow_tick_does_not_stretch_the_deadline(gate: threading.Event) -> None:
    ticks: list[int] = []

    def on_tick() -> None:
        ticks.append(1)
        threading.Event().wait(0.05)

    ending = call(lambda: gate.wait(PATIENCE_S), deadline_ms=30, tick_ms=10, on_tick=on_tick)
    assert isinstance(ending, Overran)
    assert ticks == [1]


def test_a_tick_that_raises_passes_through_and_the_type_stays_out(gate: threading.Event) -> None:
    def on_tick() -> None:
        raise LookupError("fence lost")

    calls = Outstanding(CLOCKS)
    with pytest.raises(LookupError):
        calls.call(
            "shell.exec",
            lambda: gate.wait(PATIENCE_S),
            deadline_ms=10_000,
            tick_ms=1,
            on_tick=on_tick,
        )
    assert calls.busy("shell.exec")


def track(calls: Outstanding, action_type: str, work: Callable[[], Any]) -> Ending[Any]:
    return calls.call(action_type, work, deadline_ms=20, tick_ms=60_000, on_tick=nothing)


def test_a_type_with_a_handler_out_is_not_called_again_until_it_returned(
    gate: threading.Event,
) -> None:
    calls = Outstanding(CLOCKS)
    ran: list[str] = []
    overran = track(calls, "shell.exec", lambda: gate.wait(PATIENCE_S))
    assert isinstance(overran, Overran)
    assert calls.busy("shell.exec")

    refused = track(calls, "shell.exec", lambda: ran.append("again"))
    assert isinstance(refused, NotCalled)
    assert refused.reason == "busy"
    assert isinstance(track(calls, "run.create", lambda: ran.append("other")), Returned)
    assert ran == ["other"]

    gate.set()
    overran._running.ended.wait(PATIENCE_S)
    assert not calls.busy("shell.exec")
    assert isinstance(track(calls, "shell.exec", lambda: ran.append("free")), Returned)
    assert ran == ["other", "free"]


@pytest.mark.parametrize("error", [ValueError(), SystemExit()])
def test_a_type_whose_handler_raised_is_free(error: BaseException) -> None:
    def work() -> None:
        raise error

    calls = Outstanding(CLOCKS)
    assert isinstance(track(calls, "shell.exec", work), Raised)
    assert not calls.busy("shell.exec")


def test_many_threads_call_one_type_and_one_of_them_runs(gate: threading.Event) -> None:
    calls = Outstanding(CLOCKS)
    endings: list[Ending[Any]] = []
    start = threading.Barrier(8)

    def race() -> None:
        start.wait(PATIENCE_S)
        endings.append(track(calls, "shell.exec", lambda: gate.wait(PATIENCE_S)))

    threads = [threading.Thread(target=race) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert sorted(type(each).__name__ for each in endings) == ["NotCalled"] * 7 + ["Overran"]


def test_without_a_thread_nothing_was_called(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_thread(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    ran: list[int] = []
    calls = Outstanding(CLOCKS)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", no_thread)
        for ending in (invoke(lambda: ran.append(1)), track(calls, "a", lambda: ran.append(1))):
            assert isinstance(ending, NotCalled)
            assert repr(ending) == "NotCalled(no_thread)"
    assert ran == []
    assert not calls.busy("a")


INTERRUPTED = """
import signal, sys, threading
from qinglong_edge.executor.ambient import SystemClocks
from qinglong_edge.executor.invoke import Outstanding

def stop(number, frame):
    raise {raised}

if {install}:
    signal.signal(signal.SIGTERM, stop)
print("ready", flush=True)
Outstanding(SystemClocks()).call(
    "any.type", lambda: threading.Event().wait(), deadline_ms=60_000, tick_ms=60_000,
    on_tick=lambda: None)
"""


@pytest.mark.parametrize(
    ("number", "raised", "code"),
    [
        (signal.SIGINT, None, -signal.SIGINT),
        (signal.SIGTERM, None, -signal.SIGTERM),
        (signal.SIGTERM, "SystemExit(7)", 7),
    ],
)
def test_a_signal_to_the_main_thread_ends_the_wait(
    number: signal.Signals, raised: str | None, code: int
) -> None:
    script = INTERRUPTED.format(raised=raised, install=raised is not None)
    command = [sys.executable, "-c", script]
    with subprocess.Popen(
        command,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        child.send_signal(number)
        assert child.wait(PATIENCE_S) == code
