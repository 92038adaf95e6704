"""Count what a daemon with nothing to do does: nothing, but for its timer.

Two daemons idle side by side for IDLE_S seconds: strace sees every call of one, /proc counts the
switches and bytes of the other. QINGLONG_EDGE_TEST_IDLE_S=600 is the whole ten minutes.
"""

import math
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from qinglong_edge.domain.profile import Profile, local_policy
from tests.crash.test_counts import STRACE, strace_works
from tests.support.crash import ENVIRONMENT, PASSWORD, PATIENCE_S

IDLE_S = float(os.environ.get("QINGLONG_EDGE_TEST_IDLE_S", "9"))
_SETTLED = re.compile(r"\bpoll\(.*\], \d+, \d{3,}", re.MULTILINE)  # it waits for its timer
_WOKEN = re.compile(r"\bpoll(?:\(.*| resumed>)\) = [0-9]")
_WRITES = re.compile(r"\b(?:p?write(?:64|v|v2)?|send\w*|f(?:data)?sync|msync|ftruncate)\(([^,]*)")
_SLEEPS = re.compile(r"\b(?:clock_nanosleep|nanosleep|select|pselect6|ppoll|epoll_p?wait2?)\(")
_CHANGES = re.compile(r"\b(?:unlink|rename|link|mkdir|fallocate)(?:at2?)?\(|O_CREAT|O_TRUNC")


class Counted(NamedTuple):
    """Hold what the kernel has counted of one process."""

    switches: int
    write_calls: int
    written_bytes: int


def counted(pid: int) -> Counted:
    """Return the counts of a process with all its threads."""
    switches = 0
    for status in Path(f"/proc/{pid}/task").glob("*/status"):
        switches += _field(status, "voluntary_ctxt_switches")
    io = Path(f"/proc/{pid}/io")
    return Counted(switches, _field(io, "syscw"), _field(io, "write_bytes"))


def _field(path: Path, name: str) -> int:
    found = re.search(rf"^{name}:\s*(\d+)$", path.read_text(), re.MULTILINE)
    assert found is not None, path
    return int(found[1])


def program(state: Path, *words: str) -> list[str]:
    return [sys.executable, "-P", "-B", "-m", "qinglong_edge", "--state", str(state), *words]


def initialised(directory: Path, profile: str) -> Path:
    directory.mkdir()
    password = directory / "password"
    password.write_text(PASSWORD)
    words = ["--owner", "ana", "--password-file", str(password), "--profile", profile]
    state = directory / "state"
    subprocess.run(
        program(state, "init", *words, "--volatile"),
        env=ENVIRONMENT, check=True, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    return state


@contextmanager
def running(argv: list[str], settled: Callable[[], bool]) -> Iterator[int]:
    """Run a daemon, also under a tracer, until the block ends; yield its process id."""
    with subprocess.Popen(
        argv, env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        pid = process.pid
        try:
            end = time.monotonic() + PATIENCE_S
            while not settled():
                assert process.poll() is None, argv
                assert time.monotonic() < end, "the daemon does not come to rest"
                time.sleep(0.05)
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
            pid = int(children[0]) if children else pid
            yield pid
        finally:
            if process.poll() is None:
                os.kill(pid, signal.SIGTERM)
    assert process.returncode == 0


@pytest.mark.scenario(221)
@pytest.mark.adr("0008", "1")
@pytest.mark.skipif(not strace_works(), reason="strace is missing or may not trace here")
@pytest.mark.parametrize("profile", ["edge", "standalone"])
def test_an_idle_daemon_wakes_for_its_timer_alone_and_writes_nothing(
    tmp_path: Path, profile: str
) -> None:
    interval_s = local_policy(Profile(profile)).interval_ms / 1000
    seen, plain = (initialised(tmp_path / name, profile) for name in ("seen", "plain"))
    log = tmp_path / "strace"
    tracer = [str(STRACE), "-f", "-y", "-s", "0", "-o", str(log)]
    with ExitStack() as stack:
        at_rest = stack.enter_context(
            running(program(plain, "serve"), (plain / "control.sock").exists)
        )
        stack.enter_context(
            running(
                [*tracer, *program(seen, "serve")],
                lambda: log.exists() and _SETTLED.search(log.read_text()) is not None,
            )
        )
        files = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/state/*")}
        began, before = log.stat().st_size, counted(at_rest)
        time.sleep(IDLE_S)
        after, ended = counted(at_rest), log.stat().st_size
        assert {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/state/*")} == files
    lines = log.read_bytes()[began:ended].decode().splitlines()
    timers = sum(line.endswith("= 0 (Timeout)") for line in lines)
    least, most = math.floor(IDLE_S / interval_s) - 1, math.ceil(IDLE_S / interval_s)
    assert max(least, 0) <= timers <= most
    assert sum(bool(_WOKEN.search(line)) for line in lines) <= 2 * timers + 1  # it, and its cycle
    assert [line for line in lines if _SLEEPS.search(line) or _CHANGES.search(line)] == []
    written = [found[1] for line in lines if (found := _WRITES.search(line))]
    assert [name for name in written if "<pipe:" not in name] == []
    assert len(written) <= timers + 1
    assert after.written_bytes == before.written_bytes
    assert after.write_calls - before.write_calls <= most
    assert after.switches - before.switches <= 12 * most * (least > 0)
    print(f"{profile}: {timers} timers, {len(lines)} calls, {after.switches - before.switches}")
