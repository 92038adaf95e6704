"""The spawner: slim, alone, gone with its owner, and never in the way of what it started."""

import errno
import fcntl
import json
import os
import resource
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from qinglong_edge.domain.errors import InvariantBroken, UsageError
from qinglong_edge.executor import spawner
from qinglong_edge.executor.process import Command
from qinglong_edge.executor.run_order import (
    ORDER_BYTES_MAX,
    Refused,
    Spawned,
    decode_order,
    decode_report,
    encode_order,
    encode_report,
)
from qinglong_edge.executor.spawner import Spawner
from tests.package.source_tree import ROOT
from tests.support.children import PATIENCE_S, gone
from tests.support.spawn_driver import LOCK
from tests.support.spawning import Owner, lives, open_gate, order_of, stat_of, until

TERM, KILL = signal.SIGTERM, signal.SIGKILL


def status(pid: int, field: str) -> str:
    lines = Path("/proc", str(pid), "status").read_text().splitlines()
    return next(line.split()[1] for line in lines if line.startswith(f"{field}:"))


def targets(pid: int) -> dict[int, str]:
    """Return what the descriptors of a process lead to."""
    directory = f"/proc/{pid}/fd"
    return {int(name): os.readlink(f"{directory}/{name}") for name in os.listdir(directory)}


def test_the_spawner_has_one_thread_and_nothing_of_its_owner(owner: Owner) -> None:
    owner.shell("exit 0")
    assert status(owner.spawner_pid, "Threads") == "1"
    found = targets(owner.spawner_pid)
    assert [found.pop(standard) for standard in range(3)] == [os.devnull] * 3
    assert len(found) == 1
    assert next(iter(found.values())).startswith("socket:")
    assert os.getsid(owner.spawner_pid) == owner.spawner_pid


def test_a_supervisor_has_its_log_and_pipes_and_nothing_of_its_owner(owner: Owner) -> None:
    handle = owner.shell("exec sleep 60")
    found = targets(handle.supervisor.pid).values()
    files = {each for each in found if each.startswith("/") and each != os.devnull}
    assert files == {str(owner.log()), f"{owner.log()}.missing", str(owner.log().parent)}
    assert not any(each.startswith("socket:") for each in found)
    assert status(handle.supervisor.pid, "Threads") == "1"
    os.kill(handle.supervisor.pid, TERM)
    owner.ending()


def test_a_lock_of_the_owner_does_not_outlive_it(owner: Owner) -> None:
    handle = owner.shell("exec sleep 60")
    owner.process.kill()
    owner.process.wait(PATIENCE_S)
    with (owner.directory / LOCK).open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.kill(handle.supervisor.pid, TERM)
    owner.ending()


def test_nothing_heavy_is_loaded() -> None:
    script = (
        "import sys; sys.path.insert(0, sys.argv[1]);"
        "from qinglong_edge.executor import spawner;"
        "spawner.process.prepare(); print(*sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", script, str(ROOT)],
        capture_output=True,
        text=True,
        check=True,
    )
    loaded = set(done.stdout.split())
    assert "subprocess" in loaded
    heavy = {"ssl", "_ssl", "logging", "asyncio", "concurrent.futures", "hashlib", "ctypes"}
    assert loaded & (heavy | {"sqlite3", "multiprocessing", "urllib", "uuid", "pathlib"}) == set()


def test_nothing_is_loaded_after_the_fork(owner: Owner) -> None:
    """The archive may have been replaced meanwhile, or its disk be full of errors."""
    owner.shell("echo x; (sleep 60) & exit 3", most=1)
    assert owner.ending().group_empty
    assert (owner.directory / "att-1.loaded").read_text() == ""


# Owners that end.


def test_a_killed_owner_changes_nothing_for_a_running_task(owner: Owner) -> None:
    gate = owner.directory / "gate"
    os.mkfifo(gate)
    handle = owner.shell(f"echo before; read go < {gate}; echo after; exit 23")
    until(owner.log().read_bytes)
    log = owner.log().stat().st_ino
    owner.process.kill()
    owner.process.wait(PATIENCE_S)
    gone(owner.spawner_pid)
    assert lives(handle.supervisor.pid)
    open_gate(gate)
    assert owner.ending().exit_code == 23
    assert owner.log().read_text() == "before\nafter\n"
    assert owner.log().stat().st_ino == log
    gone(handle.supervisor.pid)


def test_a_group_wide_kill_of_the_owner_reaches_no_task(owner: Owner) -> None:
    handle = owner.shell("exec sleep 60")
    os.killpg(owner.process.pid, signal.SIGINT)
    owner.process.wait(PATIENCE_S)
    gone(owner.spawner_pid)
    assert lives(handle.task.pid)
    os.kill(handle.supervisor.pid, TERM)
    assert owner.ending().signal == TERM.value


def test_an_orderly_end_of_the_owner_leaves_supervisors_alone(owner: Owner) -> None:
    handle = owner.shell("exec sleep 60")
    owner.close()
    assert owner.process.returncode == 0
    assert not lives(owner.spawner_pid)
    assert lives(handle.task.pid)
    os.kill(handle.supervisor.pid, TERM)
    owner.ending()


def test_a_killed_spawner_is_told_and_its_supervisors_go_on(owner: Owner) -> None:
    handle = owner.shell("exec sleep 60")
    os.kill(owner.spawner_pid, KILL)
    gone(owner.spawner_pid)
    assert owner.spawn(order_of("att-2", ("/bin/true",), {})) == Refused("no_spawn", "not_sent")
    assert lives(handle.task.pid)
    os.kill(handle.supervisor.pid, TERM)
    owner.ending()


def test_a_spawner_that_dies_over_an_order_leaves_it_unknown(owner: Owner) -> None:
    os.kill(owner.spawner_pid, signal.SIGSTOP)
    owner.send(order_of("att-1", ("/bin/true",), {}))
    until(lambda: waiting(owner), "the order in the socket")
    os.kill(owner.spawner_pid, KILL)
    assert owner.report() == ("att-1", Refused("unknown", "no_report"))


def waiting(owner: Owner) -> bool:
    """Tell whether the owner has a pipe open on which it waits for a report."""
    return sum(each.startswith("pipe:") for each in targets(owner.process.pid).values()) >= 3


# Many.


def test_twenty_tasks_at_once_have_their_own_ends_and_leave_no_zombie(owner: Owner) -> None:
    gate = owner.directory / "gate"
    os.mkfifo(gate)
    names = [f"att-{number}" for number in range(20)]
    env = {"PATH": "/usr/bin:/bin"}
    script = "echo $0; read go < {0}; exit $1"
    owner.send(
        *(
            order_of(name, ("/bin/sh", "-c", script.format(gate), name, str(code)), env)
            for code, name in enumerate(names)
        )
    )
    reports = dict(owner.report() for _ in names)
    handles = [report.handle for report in reports.values() if isinstance(report, Spawned)]
    assert len({each.pid for handle in handles for each in handle}) == 40
    with open(gate, "r+b", buffering=0) as held:
        held.write(b"go\n" * 20)
        assert [owner.ending(name).exit_code for name in names] == list(range(20))
    assert [owner.log(name).read_text() for name in names] == [f"{name}\n" for name in names]
    for handle in handles:
        gone(handle.supervisor.pid)
    until(lambda: not any(stat_of(handle.supervisor.pid) for handle in handles), "no zombie")


def test_a_supervisor_costs_little_memory(owner: Owner) -> None:
    handle = owner.shell("exec sleep 60")
    rollup = Path("/proc", str(handle.supervisor.pid), "smaps_rollup").read_text()
    private = [line.split()[1] for line in rollup.splitlines() if line.startswith("Private_")]
    assert sum(map(int, private)) < 4_096  # KiB
    os.kill(handle.supervisor.pid, TERM)
    owner.ending()


def test_descriptors_that_have_run_out_refuse_orders_and_end_nothing(owner: Owner) -> None:
    owner.shell("exit 0")  # it has begun, and loaded what it needs
    _, most = resource.prlimit(owner.spawner_pid, resource.RLIMIT_NOFILE)
    reports = []
    for room in range(3, 20):
        resource.prlimit(owner.spawner_pid, resource.RLIMIT_NOFILE, (room, most))
        reports.append(owner.spawn(order_of(f"att-{room}", ("/bin/true",), {})))
    began = [isinstance(report, Spawned) for report in reports]
    assert sorted(began) == began
    assert set(began) == {True, False}
    assert reports[0] == Refused("unknown", "no_report")
    assert {Refused("no_spawn", "emfile"), Refused("no_spawn", "resources")} <= set(reports)
    for room, spawned in zip(range(3, 20), began, strict=True):
        if spawned:
            assert owner.ending(f"att-{room}").exit_code == 0


def test_a_fork_that_the_machine_refuses_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused() -> int:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(os, "fork", refused)
    reading, writing = os.pipe()
    spawner._begin(None, b"", writing, None)  # type: ignore[arg-type]
    assert decode_report(os.read(reading, 100)) == Refused("no_spawn", "resources")
    os.close(reading)
    os.close(writing)  # the loop's business, so it is still open


# What is not ordered rightly.


def test_a_spawner_is_not_forked_beside_a_thread() -> None:
    over = threading.Event()
    thread = threading.Thread(target=over.wait)
    thread.start()
    try:
        with pytest.raises(InvariantBroken):
            Spawner(None)  # type: ignore[arg-type]
    finally:
        over.set()
        thread.join()


ORDER = order_of("att-1", ("/bin/true",), {"A": "1", "青": "龙"})


def test_an_order_comes_back_as_it_was_sent() -> None:
    assert decode_order(encode_order(ORDER)) == ORDER


def test_an_order_has_a_bound() -> None:
    long = ORDER._replace(command=Command("/x", ("x" * ORDER_BYTES_MAX,), "/", {}))
    with pytest.raises(UsageError):
        encode_order(long)


def test_the_largest_order_passes_the_socket(owner: Owner) -> None:
    room = ORDER_BYTES_MAX - len(
        encode_order(order_of("att-1", ("/bin/echo", ""), {}, most=1_048_576))
    )
    report = owner.spawn(order_of("att-1", ("/bin/echo", "x" * room), {}, most=1_048_576))
    assert isinstance(report, Spawned)
    assert owner.ending().exit_code == 0
    assert owner.log().stat().st_size == room + 1


CHANGES: list[dict[str, object]] = [
    {"run_id": "../x"},
    {"attempt_id": "a/b"},
    {"attempt_id": ""},
    {"callback_sequence": 0},
    {"callback_sequence": True},
    {"token": "x" * 129},
    {"log_bytes_max": 2**30 + 1},
    {"grace_ms": 30_001},
    {"command": {"program": "/x", "argv": ["x"], "cwd": "/"}},
    {"command": {"program": "/x\0", "argv": ["x"], "cwd": "/", "env": {}}},
    {"command": {"program": "/x", "argv": "x", "cwd": "/", "env": {}}},
    {"command": {"program": "/x", "argv": [1], "cwd": "/", "env": {}}},
    {"command": {"program": "/x", "argv": ["x"], "cwd": "/", "env": {"A": None}}},
    {"surplus": 1},
]


@pytest.mark.parametrize("change", CHANGES)
def test_a_crooked_order_is_refused(change: dict[str, object]) -> None:
    value = json.loads(encode_order(ORDER)) | change
    with pytest.raises(UsageError):
        decode_order(json.dumps(value).encode())


def test_a_crooked_order_starts_nothing(owner: Owner) -> None:
    crooked = ORDER._replace(token="x" * 129)
    assert owner.spawn(crooked) == Refused("no_spawn", "invalid_value")
    assert not owner.log().exists()
    assert isinstance(owner.spawn(ORDER), Spawned)
    assert owner.ending().exit_code == 0


@pytest.mark.parametrize(
    "data", [b"", b"spawned", b"spawned x y", b"refused", b"\xff", b"no_spawn"]
)
def test_a_report_that_is_torn_tells_nothing(data: bytes) -> None:
    assert decode_report(data) == Refused("unknown", "no_report")


@pytest.mark.parametrize("outcome", ["no_spawn", "unknown"])
def test_a_refusal_comes_back_as_it_was_sent(outcome: str) -> None:
    refused = Refused(outcome, "enospc")
    assert decode_report(encode_report(refused)) == refused
