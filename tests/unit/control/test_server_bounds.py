"""The owner's side under attack: every bound exactly, every kind of bad peer, nobody locked out."""

import os
import resource
import select
import socket
from contextlib import ExitStack, suppress

import pytest

from qinglong_edge.commands.engine import Answer
from qinglong_edge.control import server
from qinglong_edge.control.server import (
    CONNECTIONS_MAX,
    CONNECTIONS_PER_UID_MAX,
    PARKED_MAX,
    PARKED_STRANGERS_MAX,
    QUEUE_MAX,
    QUEUE_STRANGERS_MAX,
    READ_MS,
    STRANGERS_MAX,
    UNREAD_BYTES_MAX,
    WRITE_MS,
)
from tests.unit.control.conftest import MakeLoop
from tests.unit.control.driving import (
    NOBODY,
    WAIT_S,
    Gate,
    Loop,
    connected,
    heard,
    line,
    refusal,
    stranger,
    told,
)

ROOT_ONLY = pytest.mark.skipif(os.getuid() != 0, reason="needs root for another uid")
BIG = {"a": "b" * 3_000_000}
OTHER = NOBODY - 1


def count(loop: Loop) -> int:
    return loop.ask(lambda: len(loop.server._connections))


def here(loop: Loop, number: int) -> None:
    loop.until(lambda: len(loop.server._connections) == number)


def test_one_uid_has_sixteen_connections(serve: MakeLoop) -> None:
    loop = serve()
    held = [connected(loop.path) for _ in range(CONNECTIONS_PER_UID_MAX)]
    here(loop, CONNECTIONS_PER_UID_MAX)
    for _ in range(40):
        assert refusal(connected(loop.path)) == (4, "owner_busy")
    assert count(loop) == CONNECTIONS_PER_UID_MAX
    held.pop().close()
    here(loop, CONNECTIONS_PER_UID_MAX - 1)
    assert told(connected(loop.path, line()))[0] == 0
    for sock in held:
        sock.close()
    here(loop, 0)


def test_a_busy_answer_says_try_again(serve: MakeLoop) -> None:
    loop = serve()
    held = [connected(loop.path) for _ in range(CONNECTIONS_PER_UID_MAX)]
    here(loop, CONNECTIONS_PER_UID_MAX)
    assert told(connected(loop.path))[1]["error"]["retryable"] is True
    for sock in held:
        sock.close()


@ROOT_ONLY
@pytest.mark.adr("0008", "5")
def test_a_flood_of_strangers_locks_out_neither_owner_nor_root(serve: MakeLoop) -> None:
    owner = NOBODY - 2
    loop = serve(state_uid=owner)
    with ExitStack() as stack:
        for uid in (NOBODY, OTHER):
            stack.enter_context(stranger(loop.path, CONNECTIONS_PER_UID_MAX, uid=uid))
        here(loop, STRANGERS_MAX)
        third = stack.enter_context(stranger(loop.path, 3, uid=OTHER - 5))
        assert {part.exit_code for [part] in third.answers()} == {4}
        stack.enter_context(stranger(loop.path, CONNECTIONS_PER_UID_MAX, uid=owner))
        held = [connected(loop.path) for _ in range(CONNECTIONS_PER_UID_MAX - 1)]
        here(loop, CONNECTIONS_MAX - 1)
        assert told(connected(loop.path, line()))[0] == 0
        held.append(connected(loop.path))
        here(loop, CONNECTIONS_MAX)
        assert refusal(connected(loop.path)) == (4, "owner_busy")
        for sock in held:
            sock.close()
    here(loop, 0)


@pytest.mark.adr("0008", "5")
def test_who_says_nothing_or_half_a_line_is_dropped(serve: MakeLoop) -> None:
    loop = serve()
    silent, half = connected(loop.path), connected(loop.path, line()[:20])
    here(loop, 2)
    loop.advance(READ_MS - 1)
    half.sendall(line()[20:30])  # a byte now and then buys no time
    assert count(loop) == 2
    assert loop.ask(loop.server.next_deadline_ms) == loop.clocks.monotonic_ms() + 1
    loop.advance(1)
    assert (heard(silent), heard(half)) == (b"", b"")
    assert count(loop) == 0
    assert loop.ask(loop.server.next_deadline_ms) is None


@pytest.mark.adr("0008", "5")
def test_who_does_not_read_is_dropped(serve: MakeLoop) -> None:
    loop = serve(lambda *_: Answer(BIG))
    sock = connected(loop.path, line())
    loop.until(
        lambda: [each.stage.value for each in loop.server._connections.values()] == ["writing"]
    )
    loop.advance(WRITE_MS - 1)
    assert count(loop) == 1
    sock.recv(100_000)  # reading now and then buys no time either
    loop.advance(1)
    assert count(loop) == 0
    assert 0 < len(heard(sock)) < 3_000_000


@pytest.mark.parametrize("at", ["connected", "half", "sent", "running", "queued", "writing"])
def test_a_peer_may_leave_at_any_point(serve: MakeLoop, at: str) -> None:
    gate = Gate()
    loop = serve(gate if at in {"running", "queued"} else (lambda *_: Answer(BIG)))
    first = connected(loop.path, line()) if at == "queued" else None
    if at == "queued":
        assert gate.entered.acquire(timeout=WAIT_S)
    sock = connected(loop.path, b"" if at == "connected" else line()[: 9 if at == "half" else None])
    if at in {"queued", "writing"}:
        loop.until(lambda: at in [each.stage.value for each in loop.server._connections.values()])
    if at == "running":
        assert gate.entered.acquire(timeout=WAIT_S)
    sock.close()
    here(loop, 0 if first is None else 1)
    gate.open.set()
    if first is not None:
        assert told(first)[0] == 0
        assert len(gate.began) == 1  # the command of who left before it began is not carried out
    assert told(connected(loop.path, line()))[0] == 0
    here(loop, 0)


@pytest.mark.adr("0008", "5")
def test_a_flood_of_everything_leaves_nothing(serve: MakeLoop) -> None:
    loop = serve()
    for number in range(300):
        data = (b"", b"{", line(), b"\xff\n", line("cycle"), b"x" * 70_000)[number % 6]
        sock = connected(loop.path)
        sock.setblocking(False)
        with suppress(OSError):
            sock.send(data)
        sock.close()
    here(loop, 0)
    assert told(connected(loop.path, line()))[0] == 0
    loop.until(lambda: loop.server._queue == [] and loop.server._lanes[0].running is None)
    assert loop.ask(lambda: loop.server._served) == {}


def test_the_queue_of_strangers_ends_before_that_of_the_owner(serve: MakeLoop) -> None:
    assert QUEUE_STRANGERS_MAX + CONNECTIONS_PER_UID_MAX <= QUEUE_MAX
    assert STRANGERS_MAX + 2 * CONNECTIONS_PER_UID_MAX <= CONNECTIONS_MAX
    assert PARKED_STRANGERS_MAX < PARKED_MAX


@ROOT_ONLY
def test_the_queue_is_bounded_exactly(serve: MakeLoop) -> None:
    gate, owner = Gate(), NOBODY - 2
    loop = serve(gate, state_uid=owner)
    first = connected(loop.path, line(name="first"))
    assert gate.entered.acquire(timeout=WAIT_S)
    with ExitStack() as stack:
        flood = stack.enter_context(stranger(loop.path, 16, line(name="flood")))
        loop.until(lambda: len(loop.server._queue) == QUEUE_STRANGERS_MAX)
        late = stack.enter_context(stranger(loop.path, 2, line(), uid=OTHER))
        assert {part.exit_code for [part] in late.answers()} == {4}
        mine = stack.enter_context(stranger(loop.path, 15, line(name="owner"), uid=owner))
        loop.until(lambda: len(loop.server._queue) == QUEUE_MAX - 1)
        root = connected(loop.path, line(name="root"))
        loop.until(lambda: len(loop.server._queue) == QUEUE_MAX)
        assert refusal(connected(loop.path, line())) == (4, "owner_busy")
        gate.open.set()
        answers = [*flood.answers(), *mine.answers()]
        assert {part.exit_code for [part] in answers} == {0}
        assert told(root)[0] == told(first)[0] == 0
    turns = [name for name, _ in gate.began]
    assert turns[:4] == ["first", "flood", "owner", "root"]  # not behind somebody else's flood


@ROOT_ONLY
def test_parked_peers_are_bounded_and_hold_no_connection(serve: MakeLoop) -> None:
    loop = serve()
    with stranger(loop.path, PARKED_STRANGERS_MAX + 1, line("cycle")) as other:
        loop.until(lambda: len(loop.cycles) == PARKED_STRANGERS_MAX)
        here(loop, PARKED_STRANGERS_MAX)
        mine: list[socket.socket] = []
        while len(mine) < PARKED_MAX - PARKED_STRANGERS_MAX:
            mine.append(connected(loop.path, line("cycle")))
            loop.until(lambda: len(loop.cycles) == PARKED_STRANGERS_MAX + len(mine))
        assert refusal(connected(loop.path, line("cycle"))) == (4, "owner_busy")
        held = [connected(loop.path) for _ in range(CONNECTIONS_PER_UID_MAX - 1)]
        here(loop, PARKED_MAX + CONNECTIONS_PER_UID_MAX - 1)
        assert told(connected(loop.path, line()))[0] == 0
        for settled in loop.cycles:
            settled(Answer({}))
        assert [told(sock)[0] for sock in mine] == [0] * len(mine)
        assert sorted(part.exit_code for [part] in other.answers()) == [0] * 8 + [4]
        for sock in held:
            sock.close()


def test_answers_that_nobody_reads_hold_up_only_their_own_uid(serve: MakeLoop) -> None:
    loop = serve(lambda *_: Answer(BIG))
    lazy = connected(loop.path, line())
    loop.until(lambda: any(each.unread_bytes for each in loop.server._connections.values()))
    assert len(BIG["a"]) > UNREAD_BYTES_MAX
    later = connected(loop.path, line())
    loop.until(lambda: len(loop.server._queue) == 1)
    assert loop.ask(lambda: loop.server._lanes[0].running) is None
    loop.advance(WRITE_MS)
    assert told(later) == (0, BIG)
    lazy.close()


@ROOT_ONLY
def test_a_stranger_that_does_not_read_holds_up_nobody_else(serve: MakeLoop) -> None:
    loop = serve(lambda *_: Answer(BIG))
    with stranger(loop.path, 5, line()):
        loop.until(lambda: len(loop.server._queue) == 4 and loop.server._lanes[0].running is None)
        assert told(connected(loop.path, line())) == (0, BIG)
        assert loop.ask(lambda: loop.server._unread(NOBODY)) < 2 * UNREAD_BYTES_MAX


def test_used_up_descriptors_pause_the_door(
    serve: MakeLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = serve()
    sock = connected(loop.path)
    here(loop, 1)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    second = socket.socket(socket.AF_UNIX)
    try:
        loop.ask(lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (lowest(), hard)))
        second.connect(loop.path)
        loop.until(lambda: loop.server._accept_at_ms > 0)
        turns = loop.turns
        assert loop.ask(lambda: dict(loop.server.interests()))
        assert loop.turns < turns + 20, "the loop spins on a peer it cannot take"
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    loop.advance(server.ACCEPT_PAUSE_MS)
    second.sendall(line())
    assert told(second)[0] == 0
    sock.close()


def lowest() -> int:
    """Return the lowest limit under which nothing more can be opened."""
    fd = os.open("/", os.O_PATH)
    os.close(fd)
    return fd


def test_a_stale_event_harms_no_later_peer(serve: MakeLoop) -> None:
    gate = Gate()
    loop = serve(gate)
    sock = connected(loop.path, line())
    assert gate.entered.acquire(timeout=WAIT_S)
    [fd] = loop.ask(lambda: list(loop.server._connections))
    loop.ask(lambda: loop.server.ready(fd, select.POLLHUP))
    loop.ask(lambda: loop.server.ready(999, select.POLLIN | select.POLLHUP))
    assert count(loop) == 1
    gate.open.set()
    assert told(sock)[0] == 0
