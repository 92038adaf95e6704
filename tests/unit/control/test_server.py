"""The owner's side: what is answered, in which order, to whom."""

import json
import os
import socket
from pathlib import Path

import pytest

from qinglong_edge.commands.engine import Answer, Caller
from qinglong_edge.commands.table import TABLE
from qinglong_edge.control import address
from qinglong_edge.control.protocol import LINE_BYTES_MAX, Request, encode_request
from qinglong_edge.domain.canonical import JsonObject
from qinglong_edge.domain.errors import QinglongError, RefusedError, UnavailableError
from tests.support.clock import FakeClocks
from tests.unit.control.conftest import MakeLoop
from tests.unit.control.driving import (
    NOBODY,
    WAIT_S,
    Gate,
    Loop,
    connected,
    heard,
    line,
    parts,
    refusal,
    stranger,
    told,
)

ROOT_ONLY = pytest.mark.skipif(os.getuid() != 0, reason="needs root for another uid")
ME = os.getuid()


def test_a_command_is_answered_with_its_caller(serve: MakeLoop) -> None:
    loop = serve()
    request = Request("action.list", {"limit": 3}, "s" * 43, "a" * 43)
    assert told(connected(loop.path, encode_request(request))) == (
        0,
        {
            "command": "action.list",
            "args": {"limit": 3},
            "uid": ME,
            "session_token": "s" * 43,
            "agent_token": "a" * 43,
            "is_state_owner": True,
        },
    )


@pytest.mark.parametrize("exit_code", [0, 10, 20])
def test_an_exit_code_comes_with_its_answer(serve: MakeLoop, exit_code: int) -> None:
    loop = serve(lambda *_: Answer({"a": 1}, exit_code))
    assert told(connected(loop.path, line())) == (exit_code, {"a": 1})


def test_a_refusal_is_answered_as_an_error(serve: MakeLoop) -> None:
    def refuse(*_: object) -> Answer:
        raise RefusedError("not_allowed", "no", {"reason": "x"})

    code, body = told(connected(serve(refuse).path, line()))
    assert (code, body) == (
        3,
        {
            "error": {
                "code": "not_allowed",
                "message": "no",
                "retryable": False,
                "details": {"reason": "x"},
            }
        },
    )


@pytest.mark.parametrize(
    "bug",
    [
        ValueError("secret"), RuntimeError("secret"), MemoryError(), RecursionError("secret"),
        SystemExit(3), KeyboardInterrupt(), BaseException("secret"),
        QinglongError("x", "y", {"a": object()}),  # type: ignore[dict-item]
    ],
)  # fmt: skip
def test_a_bug_answers_without_a_word_and_the_worker_lives_on(
    serve: MakeLoop, bug: BaseException
) -> None:
    def carry(command: str, *_: object) -> Answer:
        if command == "verify":
            raise bug
        return Answer({})

    loop = serve(carry)
    answer = heard(connected(loop.path, line("verify")))
    assert b"secret" not in answer
    [part] = parts(answer)
    assert part.exit_code == 70
    error = json.loads(part.text)["error"]
    assert (error["code"], error["details"]) == ("internal_error", {})
    assert told(connected(loop.path, line())) == (0, {})


@pytest.mark.parametrize("answer", [Answer({}, 7), Answer({"a": object()})])  # type: ignore[dict-item]
def test_an_answer_that_no_line_can_hold_is_a_bug(serve: MakeLoop, answer: Answer) -> None:
    loop = serve(lambda *_: answer)
    assert told(connected(loop.path, line()))[0] == 70


@pytest.mark.parametrize(
    "command",
    ["init", "restore", "migrate", "selftest", "demo", "serve", "action.wait", "", "x", "status "],
)
def test_what_is_not_in_the_table_is_refused(serve: MakeLoop, command: str) -> None:
    gate = Gate()
    code, word = refusal(connected(serve(gate).path, line(command)))
    assert code == 2
    assert word == ("not_served" if command else "protocol")
    assert gate.began == []


def test_every_command_of_the_table_is_carried(serve: MakeLoop) -> None:
    loop = serve()
    for command in TABLE:
        assert told(connected(loop.path, line(command)))[1]["command"] == command


@pytest.mark.parametrize(
    "data",
    [
        b"\n",
        b"{}\n",
        b"\xff\xfe\n",
        b'{"a":1,"a":2}\n',
        b'{"a":' * 5_000 + b"\n",
        line().replace(b'"v":1', b'"v":2'),
        line().replace(b"null", b'"' + b"t" * 300 + b'"', 1),
        line().replace(b'"v":1', b'"v":1,"socket":"/x"'),
        b"x" * LINE_BYTES_MAX,
    ],
)
def test_what_is_no_request_is_answered_as_wrong(serve: MakeLoop, data: bytes) -> None:
    gate = Gate()
    loop = serve(gate)
    assert refusal(connected(loop.path, data)) == (2, "protocol")
    assert gate.began == []
    assert loop.stages() == []


def test_ten_megabytes_are_cut_off(serve: MakeLoop) -> None:
    loop = serve()
    sock = connected(loop.path)
    with pytest.raises(OSError, match=r"Broken pipe|reset"):
        sock.sendall(b"x" * 10_000_000)
    assert refusal(sock) == (2, "protocol")
    assert loop.stages() == []


def test_a_line_may_come_byte_by_byte(serve: MakeLoop) -> None:
    loop = serve()
    sock = connected(loop.path)
    for byte in line():
        sock.sendall(bytes([byte]))
    assert told(sock)[0] == 0


def test_one_request_a_connection(serve: MakeLoop) -> None:
    gate = Gate()
    gate.open.set()
    loop = serve(gate)
    sock = connected(loop.path, line(name="first") + line(name="second") + b"rest")
    assert told(sock)[1]["args"] == {"name": "first"}
    assert gate.began == [("first", ME)]


def test_a_peer_that_only_stopped_sending_is_answered(serve: MakeLoop) -> None:
    gate = Gate()
    loop = serve(gate)
    sock = connected(loop.path, line())
    sock.shutdown(socket.SHUT_WR)
    assert gate.entered.acquire(timeout=WAIT_S)
    turns = loop.turns
    assert loop.stages() == ["running"]
    assert loop.turns < turns + 20, "the loop spins on a half-closed peer"
    gate.open.set()
    assert told(sock)[0] == 0
    half = connected(loop.path, line()[:-1])
    half.shutdown(socket.SHUT_WR)
    assert refusal(half) == (2, "protocol")


def test_five_megabytes_are_answered(serve: MakeLoop) -> None:
    body = {"text": '0123456789 "quoted" 叶\n' * 200_000}
    loop = serve(lambda *_: Answer(body))
    assert told(connected(loop.path, line())) == (0, body)


def test_commands_of_one_uid_are_carried_in_order_one_at_a_time(serve: MakeLoop) -> None:
    gate = Gate()
    loop = serve(gate)
    socks = []
    for number in range(8):
        socks.append(connected(loop.path, line(name=str(number))))
        loop.until(
            lambda: len(loop.server._queue) + bool(loop.server._lanes[0].running) == len(socks)
        )
    assert len(gate.began) == 1
    gate.open.set()
    assert [told(sock)[1]["args"]["name"] for sock in socks] == [str(n) for n in range(8)]
    assert [name for name, _ in gate.began] == [str(number) for number in range(8)]


def test_a_slow_command_blocks_nobody_but_the_queue(serve: MakeLoop) -> None:
    gate = Gate()
    loop = serve(gate)
    slow = connected(loop.path, line())
    assert gate.entered.acquire(timeout=WAIT_S)
    assert refusal(connected(loop.path, line("nothing"))) == (2, "not_served")
    loop.advance(3_600_000)  # no deadline for a command that runs or waits
    assert loop.stages() == ["running"]
    gate.open.set()
    assert told(slow)[0] == 0


@ROOT_ONLY
def test_another_uid_is_told_apart(serve: MakeLoop) -> None:
    loop = serve()
    with stranger(loop.path, 1, line()) as other:
        [[part]] = other.answers()
    body = json.loads(part.text)
    assert (body["uid"], body["is_state_owner"]) == (NOBODY, False)


@ROOT_ONLY
def test_the_owner_of_the_state_and_root_need_no_session(serve: MakeLoop) -> None:
    loop = serve(state_uid=NOBODY)
    with stranger(loop.path, 1, line()) as owner:
        [[part]] = owner.answers()
    body = json.loads(part.text)
    assert (body["uid"], body["is_state_owner"]) == (NOBODY, True)
    assert told(connected(loop.path, line()))[1]["is_state_owner"] is True


def test_a_cycle_is_waited_for_without_deadline_and_without_a_place(serve: MakeLoop) -> None:
    gate = Gate()
    loop = serve(gate)
    socks = [connected(loop.path, line("cycle")) for _ in range(3)]
    loop.until(lambda: len(loop.cycles) == 3)
    loop.advance(86_400_000)
    assert loop.stages() == ["parked"] * 3
    busy = connected(loop.path, line())
    assert gate.entered.acquire(timeout=WAIT_S)
    loop.cycles[0](Answer({"recovery": {}}, 10))
    assert told(socks[0]) == (10, {"recovery": {}})
    loop.cycles[1](UnavailableError("recovery_failed", "x"))
    assert refusal(socks[1]) == (4, "recovery_failed")
    socks[2].close()
    loop.until(lambda: len(loop.server._connections) == 1)
    for settled in loop.cycles:
        settled(Answer({}))  # late, or twice: nobody is there
    gate.open.set()
    assert told(busy)[0] == 0
    assert loop.stages() == []


def test_a_cycle_takes_nothing_and_may_be_refused(tmp_path: Path, serve: MakeLoop) -> None:
    loop = serve()
    assert refusal(connected(loop.path, line("cycle", now=True))) == (2, "protocol")

    def refuse(_: object) -> None:
        raise UnavailableError("admission_closed", "x")

    loop.ask(
        lambda: setattr(loop.server, "_hooks", loop.server._hooks._replace(request_cycle=refuse))
    )
    assert refusal(connected(loop.path, line("cycle"))) == (4, "admission_closed")
    assert loop.stages() == []


@pytest.mark.parametrize("shown", [("s" * 43, None), (None, "a" * 43), ("", None)])
def test_an_owner_that_shows_a_token_is_whom_it_names(
    serve: MakeLoop, shown: tuple[str | None, str | None]
) -> None:
    seen: list[Caller] = []

    def carry(_command: str, _args: JsonObject, caller: Caller, _uid: int) -> Answer:
        seen.append(caller)
        raise RefusedError("not_allowed", "x")

    loop = serve(carry)
    request = encode_request(Request("cycle", {}, *shown))
    assert refusal(connected(loop.path, request)) == (3, "not_allowed")
    assert seen == [Caller(*shown, is_state_owner=True)]
    assert loop.cycles == []


@ROOT_ONLY
def test_a_stranger_is_asked_for_its_right_to_a_cycle(serve: MakeLoop) -> None:
    def carry(command: str, _args: JsonObject, caller: Caller, _uid: int) -> Answer:
        if caller.session_token is None:
            raise RefusedError("login_required", "x")
        return Answer({"command": command})

    loop = serve(carry)
    with stranger(loop.path, 1, line("cycle")) as other:
        [[part]] = other.answers()
    assert (part.exit_code, "login_required" in part.text) == (3, True)
    assert loop.cycles == []
    allowed = encode_request(Request("cycle", {}, "s" * 43))
    with stranger(loop.path, 1, allowed) as other:
        loop.until(lambda: len(loop.cycles) == 1)
        assert loop.stages() == ["parked"]
        loop.cycles[0](Answer({"done": True}))
        [[part]] = other.answers()
    assert json.loads(part.text) == {"done": True}


def test_closing_answers_who_waits_and_lets_the_running_one_end(serve: MakeLoop) -> None:
    gate = Gate()
    loop = serve(gate)
    first = connected(loop.path, line(name="first"))
    assert gate.entered.acquire(timeout=WAIT_S)
    waiting = [connected(loop.path, line(name="never")) for _ in range(3)]
    parked, silent = connected(loop.path, line("cycle")), connected(loop.path)
    loop.until(lambda: len(loop.server._connections) == 6 and len(loop.server._queue) == 3)
    loop.until(lambda: len(loop.cycles) == 1)
    gate.open.set()
    assert loop.close()
    assert told(first)[1]["args"] == {"name": "first"}
    assert {refusal(sock) for sock in [*waiting, parked]} == {(4, "owner_stopping")}
    assert heard(silent) == b""
    assert gate.began == [("first", ME)]
    loop.cycles[0](Answer({}))
    assert not Path(loop.path).exists()


class Ticking(FakeClocks):
    """Let a millisecond pass at each look, so that a grace ends without waiting for it."""

    def monotonic_ms(self) -> int:
        self.advance(1)
        return super().monotonic_ms()


def test_closing_waits_no_longer_than_its_grace(serve: MakeLoop) -> None:
    gate = Gate()
    loop = serve(gate, clocks=Ticking())
    sock = connected(loop.path, line())
    assert gate.entered.acquire(timeout=WAIT_S)
    thread = loop.server._lanes[0].worker._thread
    assert thread is not None
    assert not loop.close(grace_ms=5)
    assert heard(sock) == b""
    gate.open.set()
    thread.join(WAIT_S)


def test_closing_does_not_wait_for_who_does_not_read(serve: MakeLoop) -> None:
    loop = serve(lambda *_: Answer({"a": "b" * 3_000_000}), clocks=Ticking())
    loop.ask(lambda: None)
    sock = connected(loop.path, line())
    loop.until(lambda: any(each.unread_bytes for each in loop.server._connections.values()))
    assert loop.close(grace_ms=5)
    sock.close()


def test_a_long_path_is_served(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 150) / ("e" * 150)
    deep.mkdir(parents=True)
    loop = Loop(str(deep / "control.sock"))
    with address.connect(loop.path) as sock:
        sock.settimeout(WAIT_S)
        sock.sendall(line())
        assert parts(heard(sock))[0].exit_code == 0
    loop.close()


def test_a_password_holds_up_no_other_command(serve: MakeLoop) -> None:
    gate = Gate()
    loop = serve(gate)
    slow = connected(loop.path, line("login", name="ana"))
    assert gate.entered.acquire(timeout=WAIT_S)
    quick = connected(loop.path, line("status"))
    assert gate.entered.acquire(timeout=WAIT_S), "the second command waited for the password"
    gate.open.set()
    assert told(slow)[0] == told(quick)[0] == 0
