"""A task's whole life under its supervisor: real tasks, real signals, the receipt at the end."""

import ast
import json
import os
import signal
import sys

import pytest

from qinglong_edge.executor.logs import missing_bytes
from qinglong_edge.executor.run_order import Refused, RunEnding
from tests.support.children import CLOCKS, gone
from tests.support.spawning import (
    TOKEN,
    Owner,
    lives,
    members,
    open_gate,
    order_of,
    stat_of,
    until,
)

TERM, KILL = signal.SIGTERM, signal.SIGKILL


def outcome(ending: RunEnding) -> tuple[int | None, int | None]:
    return ending.exit_code, ending.signal


# How it ended.


@pytest.mark.parametrize("code", [0, 1, 23, 137, 143, 255])
def test_an_exit_code_is_published(owner: Owner, code: int) -> None:
    owner.shell(f"exit {code}")
    assert outcome(owner.ending()) == (code, None)


@pytest.mark.parametrize("number", [KILL, TERM, signal.SIGSEGV])
def test_a_signal_is_published_apart(owner: Owner, number: signal.Signals) -> None:
    owner.shell(f"ulimit -c 0; kill -{number.value} $$")
    assert outcome(owner.ending()) == (None, number.value)


def test_an_ending_holds_times_boot_and_proof(owner: Owner) -> None:
    before = CLOCKS.read()
    owner.shell("exit 0")
    ending = owner.ending()
    assert before.wall_ms <= ending.started_at_ms <= ending.finished_at_ms
    assert ending.finished_at_ms <= CLOCKS.read().wall_ms
    assert ending.boot_id == before.boot_id
    assert (ending.group_empty, ending.descendants_proven) == (True, False)


def test_a_task_that_closes_its_output_is_still_waited_for(owner: Owner) -> None:
    gate = owner.directory / "gate"
    os.mkfifo(gate)
    owner.shell(f"echo x; exec >&- 2>&-; read go < {gate}; exit 3")
    open_gate(gate)
    assert outcome(owner.ending()) == (3, None)
    assert owner.log().read_bytes() == b"x\n"


# What it begins with.


def test_a_task_has_exactly_what_was_ordered(owner: Owner) -> None:
    script = (
        "import os, sys; fds = os.listdir('/proc/self/fd');"
        "print(ascii([dict(os.environ), sys.argv[1:], sorted(fds), os.getcwd(), os.umask(0),"
        " sys.stdin.read()]))"
    )
    env = {"A": "1\n2", "B": "", "LC_ALL": "C.UTF-8", "青": "龙"}
    words = (sys.executable, "-X", "utf8", "-I", "-S", "-c", script, "", "a b", "青龙")
    owner.spawn(order_of("att-1", words, env))
    assert outcome(owner.ending()) == (0, None)
    given = ast.literal_eval(owner.log().read_text())
    assert given.pop(2) == ["0", "1", "2", "3"]  # 3 is the directory that is listed
    assert given == [env, ["", "a b", "青龙"], "/", 0o022, ""]


def test_a_task_blocks_and_ignores_no_signal(owner: Owner) -> None:
    owner.shell("grep Sig[BI] /proc/self/status")
    assert outcome(owner.ending()) == (0, None)
    words = owner.log().read_text().split()
    assert {name: int(mask, 16) for name, mask in zip(words[::2], words[1::2], strict=True)} == {
        "SigBlk:": 0,
        "SigIgn:": 0,
    }


def test_task_and_supervisor_lead_their_groups(owner: Owner) -> None:
    handle = owner.shell("read x < /dev/null; exec sleep 60")
    assert handle.task.pgid == handle.task.pid
    assert handle.supervisor.pgid == handle.supervisor.pid
    assert os.getsid(handle.supervisor.pid) == handle.supervisor.pid
    assert os.getsid(handle.task.pid) == handle.supervisor.pid
    os.kill(handle.supervisor.pid, TERM)
    assert outcome(owner.ending()) == (None, TERM.value)


def test_the_token_is_in_no_argument_environment_or_log(owner: Owner) -> None:
    handle = owner.shell("env; exec sleep 60")
    until(owner.log().read_bytes)
    for pid in (owner.spawner_pid, *(each.pid for each in handle)):
        for name in ("environ", "cmdline"):
            with open(f"/proc/{pid}/{name}", "rb") as file:
                assert TOKEN.encode() not in file.read()
    os.kill(handle.supervisor.pid, TERM)
    owner.ending()
    assert TOKEN.encode() not in owner.log().read_bytes()


# Output.


def test_output_is_seen_before_the_end_in_a_private_file(owner: Owner) -> None:
    handle = owner.shell("echo here; echo there >&2; exec sleep 60")
    until(lambda: owner.log().read_bytes() == b"here\nthere\n")
    assert owner.log().stat().st_mode & 0o7777 == 0o600
    assert missing_bytes(str(owner.log().parent), "att-1") is None
    os.kill(handle.supervisor.pid, TERM)
    assert owner.ending().truncated_bytes == 0
    assert missing_bytes(str(owner.log().parent), "att-1") == 0


@pytest.mark.parametrize("count", [0, 65_536, 65_537, 10_485_760])
def test_a_log_is_full_to_the_byte_and_the_rest_is_counted(owner: Owner, count: int) -> None:
    most = 65_536
    owner.shell(f"head -c {count} /dev/zero || exit 9", most=most)
    ending = owner.ending()
    assert outcome(ending) == (0, None)
    assert owner.log().stat().st_size == min(count, most)
    assert ending.truncated_bytes == count - min(count, most)
    assert missing_bytes(str(owner.log().parent), "att-1") == ending.truncated_bytes


# What a leader leaves behind.


def test_a_daemon_that_left_the_group_does_not_hold_the_run(owner: Owner) -> None:
    code = (
        "import os, time\n"
        "if os.fork(): os._exit(0)\n"
        "os.setsid(); print(os.getpid(), flush=True)\n"
        "if os.fork(): os._exit(0)\n"
        "print(os.getpid(), flush=True); time.sleep(60)"
    )
    owner.shell(f"$PYTHON -c '{code}'; while ! [ -s {owner.log()} ]; do :; done; exit 4")
    ending = owner.ending()
    assert outcome(ending) == (4, None)
    assert not ending.descendants_proven
    until(lambda: len(owner.log().read_text().split()) >= 1)
    for pid in (int(word) for word in owner.log().read_text().split()):
        for each in members(pid):
            os.kill(each, KILL)
            gone(each)


def test_members_that_finish_soon_may(owner: Owner) -> None:
    gate = owner.directory / "gate"
    os.mkfifo(gate)
    owner.shell(f"(read x < {gate}; echo late) & exit 5")
    open_gate(gate)
    ending = owner.ending()
    assert outcome(ending) == (5, None)
    assert ending.group_empty
    assert owner.log().read_text() == "late\n"


def test_members_that_stay_are_stopped_and_proven(owner: Owner) -> None:
    script = "for i in 1 2 3; do (trap '' TERM; while :; do sleep 60; done) & done; exit 5"
    handle = owner.shell(script, grace_ms=100)
    ending = owner.ending()
    assert outcome(ending) == (5, None)
    assert ending.group_empty
    assert members(handle.task.pgid) == []


def test_a_dead_leader_keeps_its_number_until_its_group_is_settled(owner: Owner) -> None:
    script = "(trap '' TERM; echo up; while :; do sleep 60; done) & until [ -s {0} ]; do :; done"
    handle = owner.shell(script.format(owner.log()) + "; exit 5", grace_ms=30_000)
    until(lambda: not lives(handle.task.pid))
    found = stat_of(handle.task.pid)
    assert found is not None
    assert found.dead
    for pid in members(handle.task.pgid):
        os.kill(pid, KILL)
    assert outcome(owner.ending()) == (5, None)


# Being stopped.


def test_term_reaches_every_member_and_the_exit_code_is_the_tasks_own(owner: Owner) -> None:
    handle = owner.shell("trap 'echo bye; exit 23' TERM; echo up; while :; do sleep 0.02; done")
    until(owner.log().read_bytes)
    os.kill(handle.supervisor.pid, TERM)
    assert outcome(owner.ending()) == (23, None)
    assert owner.log().read_text().startswith("up\n")
    assert owner.log().read_text().endswith("bye\n")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_other_calls_to_stop_are_the_same(owner: Owner, number: signal.Signals) -> None:
    handle = owner.shell("exec sleep 60")
    os.kill(handle.supervisor.pid, number)
    assert outcome(owner.ending()) == (None, TERM.value)


def test_a_task_that_ignores_term_is_killed_after_the_grace(owner: Owner) -> None:
    handle = owner.shell("trap '' TERM; echo up; while :; do sleep 60; done", grace_ms=100)
    until(owner.log().read_bytes)
    os.kill(handle.supervisor.pid, TERM)
    ending = owner.ending()
    assert outcome(ending) == (None, KILL.value)
    assert ending.group_empty


def test_a_second_call_to_stop_shortens_nothing(owner: Owner) -> None:
    gate = owner.directory / "gate"
    os.mkfifo(gate)
    script = f"trap 'echo one; read x < {gate}; exit 7' TERM; echo up; while :; do sleep 0.02; done"
    handle = owner.shell(script)
    until(owner.log().read_bytes)
    os.kill(handle.supervisor.pid, TERM)
    until(lambda: b"one" in owner.log().read_bytes())
    os.kill(handle.supervisor.pid, TERM)
    open_gate(gate)
    assert outcome(owner.ending()) == (7, None)


def test_fifty_children_are_stopped_with_their_parent(owner: Owner) -> None:
    script = "i=0; while [ $i -lt 50 ]; do sleep 60 & i=$((i+1)); done; echo up; wait"
    handle = owner.shell(script)
    until(owner.log().read_bytes)
    assert len(members(handle.task.pgid)) == 51
    os.kill(handle.supervisor.pid, TERM)
    ending = owner.ending()
    assert outcome(ending) == (None, TERM.value)
    assert ending.group_empty
    assert members(handle.task.pgid) == []


# What does not begin, and what is published with trouble.


def test_what_cannot_be_started_is_refused_and_leaves_nothing(owner: Owner) -> None:
    order = order_of("att-1", ("/nonexistent/program",), {})
    assert owner.spawn(order) == Refused("no_spawn", "not_found")
    assert os.listdir(owner.directory / "logs") == []
    until(lambda: not (owner.directory / "att-1.room").exists())


def test_without_room_for_the_receipt_nothing_starts(owner: Owner) -> None:
    order = order_of("full-1", ("/bin/sh", "-c", f"echo > {owner.directory}/ran"), {})
    assert owner.spawn(order) == Refused("no_spawn", "enospc")
    assert not (owner.directory / "ran").exists()
    assert not (owner.directory / "logs").exists()


@pytest.mark.parametrize("name", ["att-1.log", "att-1.log.missing"])
@pytest.mark.parametrize("kind", ["file", "directory", "dangling link"])
def test_a_taken_name_of_a_log_refuses_the_start(owner: Owner, name: str, kind: str) -> None:
    path = owner.log().parent / name
    path.parent.mkdir()
    if kind == "file":
        path.write_text("other")
    elif kind == "directory":
        path.mkdir()
    else:
        path.symlink_to(owner.directory / "elsewhere")
    order = order_of("att-1", ("/bin/sh", "-c", f"echo > {owner.directory}/ran"), {})
    assert owner.spawn(order) == Refused("no_spawn", "eexist")
    assert os.listdir(path.parent) == [name]
    assert not (owner.directory / "ran").exists()
    assert not (owner.directory / "elsewhere").exists()


@pytest.mark.parametrize(("attempt", "tries"), [("flaky-1", 3), ("deaf-1", 4)])
def test_publishing_is_tried_a_bounded_number_of_times(
    owner: Owner, attempt: str, tries: int
) -> None:
    handle = owner.shell("exit 6", attempt)
    gone(handle.supervisor.pid)
    assert (owner.directory / f"{attempt}.tries").read_text() == "x" * tries
    assert not (owner.directory / f"{attempt}.room").exists()
    if attempt == "flaky-1":
        assert outcome(owner.ending(attempt)) == (6, None)


def test_an_ending_is_plain_values(owner: Owner) -> None:
    owner.shell("exit 0")
    text = json.dumps(owner.ending())
    assert RunEnding(*json.loads(text)) == owner.ending()
