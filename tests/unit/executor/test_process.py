"""Real children, real signals: every end of a process has its name, and none is left behind."""

import errno
import os
import signal
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from qinglong_edge.executor.process import (
    Command,
    DeadlineExceeded,
    End,
    Exited,
    Lost,
    NotStarted,
    Signalled,
    StopTimes,
    run,
)
from tests.support.children import (
    CLOCKS,
    PATIENCE_S,
    QUICK,
    Output,
    gone,
    marked,
    nothing_left,
    plain,
)

SH = "/bin/sh"
MARK = "QINGLONG_EDGE_TEST_MARK"
PATIENT = StopTimes(grace_ms=5_000)


@pytest.fixture(autouse=True)
def mark() -> Iterator[str]:
    mark = uuid.uuid4().hex
    with nothing_left(mark):
        yield mark


@pytest.fixture(params=["pidfd", "polling"])
def wakeup(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Try both ways of learning that a leader ended."""

    def absent(_pid: int) -> int:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    if request.param == "polling":
        monkeypatch.setattr(os, "pidfd_open", absent)


Shell = Callable[..., End]


@pytest.fixture
def shell(mark: str) -> Shell:
    """Run a script of the shell."""

    def start(
        script: str,
        output: Output | None = None,
        timeout_ms: int = 10_000,
        times: StopTimes = QUICK,
    ) -> End:
        environment = {"PATH": "/usr/bin:/bin", MARK: mark, "PYTHON": sys.executable}
        command = Command(SH, ("sh", "-c", script), "/", environment)
        return run(command, output or Output(), timeout_ms=timeout_ms, clocks=CLOCKS, times=times)

    return start


@pytest.mark.adr("0007", "1")
@pytest.mark.usefixtures("wakeup")
@pytest.mark.parametrize("code", [0, 1, 7, 126, 255])
def test_an_exit_code_is_told(shell: Shell, code: int) -> None:
    assert shell(f"exit {code}") == Exited(code)


@pytest.mark.adr("0007", "1")
@pytest.mark.usefixtures("wakeup")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
def test_a_signal_is_told(shell: Shell, number: signal.Signals) -> None:
    assert shell(f"ulimit -c 0; kill -{number.value} $$") == Signalled(number.value)


def test_endings_of_different_kinds_are_never_equal() -> None:
    assert Exited(9) != Signalled(9)
    assert len({Exited(1), DeadlineExceeded(True), Exited(1)}) == 2
    assert repr(NotStarted("resources")) == "NotStarted('resources')"


@pytest.mark.usefixtures("wakeup")
def test_output_and_error_come_through_one_pipe_in_order(shell: Shell) -> None:
    output = Output()
    assert shell("echo a; echo b >&2; printf c", output) == Exited(0)
    assert output.data == b"a\nb\nc"


def test_arguments_reach_the_program_as_they_are() -> None:
    script = "import sys; sys.stdout.buffer.write(ascii(sys.argv[1:]).encode())"
    given = ("", " ", "new\nline", "青龙", "-x", "$HOME", "*")
    _, data = plain(sys.executable, "-X", "utf8", "-c", script, *given)
    assert data == ascii(list(given)).encode()


def test_the_name_given_as_first_argument_is_not_the_program_that_runs() -> None:
    output = Output()
    command = Command(SH, ("busybox-like", "-c", "echo $0"), "/", {})
    assert run(command, output, timeout_ms=5_000, clocks=CLOCKS) == Exited(0)
    assert output.data == b"busybox-like\n"


def test_the_environment_is_exactly_the_given_one() -> None:
    output = Output()
    command = Command("/usr/bin/env", ("env", "-0"), "/", {"A": "1\n2", "B": "", "青": "龙"})
    assert run(command, output, timeout_ms=5_000, clocks=CLOCKS) == Exited(0)
    assert set(bytes(output.data).split(b"\0")) == {b"A=1\n2", b"B=", "青=龙".encode(), b""}


def test_a_child_begins_with_a_clean_slate(shell: Shell, tmp_path: Path) -> None:
    leak = os.open(tmp_path, os.O_RDONLY)
    os.set_inheritable(leak, True)
    blocked = {signal.SIGUSR1, signal.SIGTERM}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, blocked)
    output = Output()
    try:
        script = "umask; pwd; cat; ls /proc/self/fd; grep Sig[BI] /proc/self/status"
        assert shell(script, output) == Exited(0)
        assert blocked <= signal.pthread_sigmask(signal.SIG_BLOCK, ())
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os.close(leak)
    lines = output.data.decode().split()
    assert lines[:2] == ["0022", "/"]
    assert lines[2:6] == ["0", "1", "2", "3"]  # 3 is the directory that ls reads
    signals = dict(zip(lines[6::2], lines[7::2], strict=True))
    assert int(signals["SigBlk:"], 16) == 0
    ignored = int(signals["SigIgn:"], 16)
    assert not ignored & 1 << signal.SIGPIPE - 1
    assert not ignored & 1 << signal.SIGXFSZ - 1


def test_a_child_leads_a_group_of_its_own() -> None:
    script = "import os; print(os.getpgrp() == os.getpid(), os.getsid(0))"
    _, data = plain(sys.executable, "-c", script)
    assert data.decode().split() == ["True", str(os.getsid(0))]


def test_a_child_can_be_run_by_several_threads_at_once(shell: Shell) -> None:
    endings: list[tuple[int, End]] = []
    threads = [
        threading.Thread(target=lambda code=code: endings.append((code, shell(f"exit {code}"))))
        for code in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert sorted(endings, key=lambda pair: pair[0]) == [(code, Exited(code)) for code in range(8)]


@pytest.mark.usefixtures("wakeup")
def test_a_hundred_megabytes_are_read_to_the_end(shell: Shell) -> None:
    output = Output()
    assert shell("head -c 100000000 /dev/zero", output) == Exited(0)
    assert output.count == 100_000_000


@pytest.mark.usefixtures("wakeup")
def test_a_child_that_closes_its_output_early_is_still_waited_for(shell: Shell) -> None:
    output = Output()
    assert shell("echo x; exec >&- 2>&-; sleep 0.1; exit 3", output) == Exited(3)
    assert output.data == b"x\n"


# The deadline.


def stopped_within(shell: Shell, script: str, least_ms: int, most_ms: int) -> End:
    start_ms = CLOCKS.monotonic_ms()
    ending = shell(script, timeout_ms=100)
    assert least_ms <= CLOCKS.monotonic_ms() - start_ms <= most_ms
    return ending


@pytest.mark.usefixtures("wakeup")
def test_a_child_that_obeys_term_is_stopped_at_its_deadline(shell: Shell) -> None:
    assert stopped_within(shell, "exec sleep 60", 100, 5_000) == DeadlineExceeded(True)


def test_a_graceful_exit_at_the_deadline_is_not_taken_for_an_answer(shell: Shell) -> None:
    script = "trap 'exit 0' TERM; while :; do sleep 0.02; done"
    assert stopped_within(shell, script, 100, 5_000) == DeadlineExceeded(True)


@pytest.mark.adr("0007", "4")
@pytest.mark.usefixtures("wakeup")
def test_a_child_that_ignores_term_is_killed_after_the_grace(shell: Shell) -> None:
    script = "trap '' TERM; while :; do sleep 60; done"
    assert stopped_within(shell, script, 200, 5_000) == DeadlineExceeded(True)


@pytest.mark.adr("0007", "4")
@pytest.mark.usefixtures("wakeup")
def test_a_grandchild_that_ignores_term_is_killed_with_the_group(shell: Shell, mark: str) -> None:
    script = "(trap '' TERM; while :; do sleep 60; done) & exec sleep 60"
    assert stopped_within(shell, script, 200, 5_000) == DeadlineExceeded(True)
    assert marked(mark) == []


@pytest.mark.adr("0007", "4")
def test_a_stopped_child_is_ended_as_well(shell: Shell) -> None:
    assert stopped_within(shell, "kill -STOP $$", 100, 5_000) == DeadlineExceeded(True)


def test_a_stopped_child_may_clean_up_first(shell: Shell, tmp_path: Path) -> None:
    script = f"trap 'echo cleaned > {tmp_path}/said; exit' TERM; kill -STOP $$; exec sleep 60"
    assert shell(script, timeout_ms=100, times=PATIENT) == DeadlineExceeded(True)
    assert (tmp_path / "said").read_text() == "cleaned\n"


def test_a_child_that_never_stops_writing_is_stopped(shell: Shell) -> None:
    assert stopped_within(shell, "exec yes", 100, 5_000) == DeadlineExceeded(True)


def test_a_leader_that_moves_to_another_group_is_still_stopped(shell: Shell) -> None:
    code = "import os, time; os.setpgid(0, os.getpgid(os.getppid())); time.sleep(60)"
    script = f"exec $PYTHON -c '{code}'"
    assert shell(script, timeout_ms=500) == DeadlineExceeded(True)


def test_output_before_the_deadline_is_kept(shell: Shell) -> None:
    output = Output()
    script = "trap 'echo bye; exit' TERM; echo here; while :; do sleep 0.02; done"
    assert shell(script, output, timeout_ms=150, times=PATIENT) == DeadlineExceeded(True)
    assert output.data.startswith(b"here\n")
    assert output.data.endswith(b"bye\n")


# What a leader leaves behind.


@pytest.mark.usefixtures("wakeup")
def test_a_descendant_that_keeps_the_pipe_open_does_not_hold_us(shell: Shell) -> None:
    output = Output()
    start_ms = CLOCKS.monotonic_ms()
    assert shell("sleep 60 & echo $!; exit 5", output) == Exited(5)
    assert CLOCKS.monotonic_ms() - start_ms < 5_000
    pid = int(output.data)
    os.kill(pid, signal.SIGKILL)
    gone(pid)


def test_a_descendant_that_fills_the_pipe_is_read_for_a_bounded_time(shell: Shell) -> None:
    output = Output()
    start_ms = CLOCKS.monotonic_ms()
    assert shell("echo $$; yes & exit 0", output) == Exited(0)
    assert CLOCKS.monotonic_ms() - start_ms < 5_000
    for pid in members(int(output.data.split()[0])):
        gone(pid)  # of SIGPIPE, because its pipe is closed


def members(pgid: int) -> list[int]:
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            if os.getpgid(int(name)) == pgid:
                found.append(int(name))
        except ProcessLookupError:
            continue
    return found


def test_a_status_that_somebody_else_took_is_lost(shell: Shell, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "gate")

    def steal(data: bytes) -> None:
        (tmp_path / "gate").write_text("go\n")
        os.waitpid(int(data), 0)

    assert shell(f"echo $$; read go < {tmp_path}/gate", Output(steal)) == Lost(None)


def test_an_error_of_our_own_kills_the_group_and_passes(shell: Shell) -> None:
    pids = []

    def fail(data: bytes) -> None:
        pids.append(int(data))
        raise MemoryError

    with pytest.raises(MemoryError):
        shell("echo $$; exec sleep 60", Output(fail))
    assert not Path("/proc", str(pids[0])).exists()
