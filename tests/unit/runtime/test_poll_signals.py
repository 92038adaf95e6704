"""Signals end a poll host in its time, and no signal kills the drain; in a process of its own."""

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

PATIENCE_S = 10.0

CHILD = """
import os, signal, sys
from qinglong_edge.domain.lifecycle import Cursors, Options
from qinglong_edge.executor.ambient import SystemClocks
from qinglong_edge.runtime.carrier import Hooks
from qinglong_edge.runtime.poll_host import PollHost

def say(word):
    os.write(1, word.encode() + b"\\n")

def cycle(cursors, stopping):
    say("begun")
    if sys.argv[1] == "idle":
        return cursors
    os.read(0, 1)
    say("told" if stopping() else "not told")
    return cursors

hooks = Hooks(cycle, lambda cursors: say("cycle"), lambda error: say(repr(error)))
before = [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)]
options = Options(30_000, 0, int(sys.argv[2]), 1_000)
host = PollHost(options, hooks, SystemClocks(), lambda: say("hangup"))
say(host.run())
after = [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)]
say("restored" if after == before and signal.set_wakeup_fd(-1) == -1 else "left behind")
os._exit(0)
"""


@contextmanager
def child(*arguments: str) -> Iterator["subprocess.Popen[bytes]"]:
    argv = [sys.executable, "-c", CHILD, *arguments]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        killer = threading.Timer(PATIENCE_S, process.kill)
        killer.start()
        yield process
        killer.cancel()
    assert process.returncode == 0


def line(process: "subprocess.Popen[bytes]") -> str:
    assert process.stdout is not None
    return process.stdout.readline().decode().strip()


def release(process: "subprocess.Popen[bytes]") -> None:
    assert process.stdin is not None
    process.stdin.write(b"x")
    process.stdin.flush()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_an_idle_host(number: signal.Signals) -> None:
    with child("idle", "5000") as process:
        assert [line(process), line(process)] == ["begun", "cycle"]
        process.send_signal(number)
        assert [line(process), line(process)] == ["drained", "restored"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_more_signals_do_not_kill_the_drain(number: signal.Signals) -> None:
    with child("slow", "60000") as process:
        assert line(process) == "begun"
        for _ in range(3):
            process.send_signal(number)
            process.send_signal(signal.SIGHUP)
            assert line(process) == "hangup"
        release(process)
        assert [line(process) for _ in range(4)] == ["told", "cycle", "drained", "restored"]


def test_a_stop_by_signal_is_bounded() -> None:
    with child("slow", "1") as process:
        assert line(process) == "begun"
        process.send_signal(signal.SIGTERM)
        assert [line(process), line(process)] == ["timed_out", "restored"]


def test_a_hangup_calls_and_ends_nothing() -> None:
    with child("idle", "5000") as process:
        assert [line(process), line(process)] == ["begun", "cycle"]
        process.send_signal(signal.SIGHUP)
        assert line(process) == "hangup"
        process.send_signal(signal.SIGTERM)
        assert line(process) == "drained"
        assert line(process) == "restored"
