"""What a child begins with, what cannot begin, and what is proof that a group is empty."""

import os
import shutil
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from qinglong_edge.executor.process import Exited, NotStarted
from qinglong_edge.executor.process_group import group_empty
from tests.package.source_tree import ROOT
from tests.support.children import PATIENCE_S, gone, nothing_left, plain

SH = "/bin/sh"


@pytest.fixture(autouse=True)
def mark() -> Iterator[None]:
    with nothing_left(uuid.uuid4().hex):
        yield


# Nothing ran.


def script_file(path: Path, text: str, mode: int = 0o755) -> str:
    path.write_text(text)
    path.chmod(mode)
    return str(path)


def test_what_cannot_be_started_says_why(tmp_path: Path) -> None:
    plain_file = script_file(tmp_path / "plain", "#!/bin/sh\n", 0o644)
    no_shebang = script_file(tmp_path / "bare", "exit 0\n")
    lost_shebang = script_file(tmp_path / "lost", "#!/nowhere/sh\n")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    cases = {
        str(tmp_path / "absent"): "not_found",
        f"{plain_file}/below": "not_found",
        str(tmp_path / "loop"): "not_found",
        "/" + "x" * 300: "not_found",
        plain_file: "not_executable",
        no_shebang: "not_executable",
        lost_shebang: "not_executable",
        str(tmp_path): "not_executable",
        "/": "not_executable",
    }
    assert {program: plain(program)[0] for program in cases} == {
        program: NotStarted(reason) for program, reason in cases.items()
    }


@pytest.mark.parametrize("kind", ["absent", "file", "below a file"])
def test_a_missing_directory_is_told(tmp_path: Path, kind: str) -> None:
    (tmp_path / "file").write_text("")
    cwd = {"absent": tmp_path / "absent", "file": tmp_path / "file"}.get(
        kind, tmp_path / "file" / "below"
    )
    assert plain(SH, "-c", "exit 0", cwd=str(cwd))[0] == NotStarted("cwd_missing")


def test_a_relative_program_counts_from_the_directory_and_is_not_searched(tmp_path: Path) -> None:
    script_file(tmp_path / "tool", "#!/bin/sh\npwd\n")
    for program in ("tool", "./tool"):
        assert plain(program, cwd=str(tmp_path)) == (Exited(0), f"{tmp_path}\n".encode())
    assert plain("sh", cwd=str(tmp_path))[0] == NotStarted("not_found")


PREPARED = """
import os, resource, signal, sys
from qinglong_edge.executor.ambient import SystemClocks
from qinglong_edge.executor.process import Command, StopTimes, run

class Out:
    def write(self, data):
        os.write(1, data)

def go(*argv, timeout_ms=5000, times=StopTimes()):
    command = Command(argv[0], argv, "/", {})
    print(run(command, Out(), timeout_ms=timeout_ms, clocks=SystemClocks(), times=times))

"""


def prepared(script: str, *argv: str) -> list[str]:
    """Run a script in a process of its own, for what would harm this one."""
    done = subprocess.run(
        [sys.executable, "-c", PREPARED + script, *argv],
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_fork_that_the_machine_refuses_is_told() -> None:
    script = """
import subprocess
if os.geteuid() == 0:
    os.setresuid(65534, 65534, 65534)
resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
go("/bin/sh", "-c", "exit 0")
"""
    assert prepared(script) == ["NotStarted('resources')"]


def test_descriptors_that_have_run_out_are_told() -> None:
    script = """
import subprocess
for room in range(8):
    resource.setrlimit(resource.RLIMIT_NOFILE, (3 + room, 1024))
    go("/bin/sh", "-c", "exit 0")
"""
    lines = prepared(script)
    assert set(lines) == {"NotStarted('resources')", "Exited(0)"}
    assert sorted(lines, reverse=True) == lines


def test_where_nobody_keeps_exit_codes_nothing_is_started() -> None:
    script = """
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
go("/bin/sh", "-c", "echo ran")
"""
    assert prepared(script) == ["NotStarted('sigchld_ignored')"]


# The proof.


@pytest.mark.adr("0007", "4")
def test_a_group_that_cannot_be_signalled_is_not_proven_empty(public: Path) -> None:
    """Run as an ordinary user a program that makes itself root: it cannot be stopped by us."""
    system_python = "/usr/bin/python3"
    if os.geteuid() != 0 or not os.path.exists(system_python):
        pytest.skip("needs root and a system interpreter")
    tool = public / "tool"
    shutil.copy(system_python, tool)
    tool.chmod(0o4755)
    script = """
code = "import os, time; print(os.getpid(), flush=True); os.setresuid(0, 0, 0); time.sleep(60)"
import subprocess
os.setresuid(65534, 65534, 65534)
go(sys.argv[1], "-I", "-S", "-c", code, timeout_ms=1000, times=StopTimes(50, 50, 50))
sys.stdout.flush()
os._exit(0)
"""
    lines = prepared(script, str(tool))
    if lines[0].startswith("Traceback"):
        pytest.skip("set-user-id programs do not work here")
    os.kill(int(lines[0]), signal.SIGKILL)
    gone(int(lines[0]))
    assert lines[1:] == ["DeadlineExceeded(False)"]


THREADED = """
import ctypes, os, threading, time

def live():
    while open(f"/proc/{os.getpid()}/stat").read().rpartition(")")[2].split()[0] != "Z":
        time.sleep(0.01)
    os.write(1, b"leader thread is gone\\n")
    time.sleep(60)

threading.Thread(target=live).start()
ctypes.CDLL(None).syscall({"x86_64": 60}.get(os.uname().machine, 93), 0)
"""


def test_a_zombie_with_living_threads_is_not_dead() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", THREADED], stdout=subprocess.PIPE, process_group=0
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"leader thread is gone\n"
        assert not group_empty(child.pid)
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert group_empty(child.pid)


def test_our_own_group_is_not_empty_and_a_number_of_nobody_is() -> None:
    assert not group_empty(os.getpgrp())
    assert group_empty(2**22 + 1)
