"""The other side: one question, one answer, and every way not to get it."""

import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from qinglong_edge.commands.engine import Answer
from qinglong_edge.control import address
from qinglong_edge.control.client import OwnerUnreachableError, ask
from qinglong_edge.control.protocol import Request, encode_answer
from qinglong_edge.domain.errors import RefusedError, UnavailableError, UsageError
from qinglong_edge.executor.ambient import SystemClocks
from tests.support.clock import FakeClocks
from tests.unit.control.conftest import MakeLoop
from tests.unit.control.driving import WAIT_S

CLOCKS = SystemClocks()
STATUS = Request("status", {})


def asked(path: str | Path, request: Request = STATUS, deadline_ms: int | None = 10_000) -> Answer:
    return ask(str(path), request, deadline_ms=deadline_ms, clocks=CLOCKS)


@contextmanager
def owner(path: Path, play: Callable[[socket.socket], None]) -> Iterator[str]:
    """Listen and play one connection in a thread."""
    place = address.listen(str(path), state_dir="/nowhere")
    place.listener.settimeout(WAIT_S)

    def run() -> None:
        sock, _ = place.listener.accept()
        sock.settimeout(WAIT_S)
        with sock:
            play(sock)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    yield str(path)
    thread.join(WAIT_S)
    place.remove()
    place.listener.close()


def says(*pieces: bytes) -> Callable[[socket.socket], None]:
    def play(sock: socket.socket) -> None:
        sock.recv(65_536)
        for piece in pieces:
            try:
                sock.sendall(piece)
            except OSError:
                return

    return play


@pytest.mark.parametrize("deadline_ms", [None, 10_000])
def test_a_question_is_answered(serve: MakeLoop, deadline_ms: int | None) -> None:
    loop = serve()
    answer = asked(loop.path, Request("action.show", {"id": "叶"}, None, "t"), deadline_ms)
    assert (answer.body["args"], answer.body["agent_token"]) == ({"id": "叶"}, "t")


def test_five_megabytes_are_read(serve: MakeLoop) -> None:
    body = {"text": '叶"\\' * 1_000_000}
    loop = serve(lambda *_: Answer(body, 20))
    assert asked(loop.path) == Answer(body, 20)


def test_an_error_of_the_owner_is_raised_as_it_was(serve: MakeLoop) -> None:
    def refuse(*_: object) -> Answer:
        raise UnavailableError("owner_unreachable", "m", {"n": 1})

    loop = serve(refuse)
    with pytest.raises(UnavailableError) as caught:
        asked(loop.path)
    assert not isinstance(caught.value, OwnerUnreachableError)
    assert (caught.value.code, caught.value.details) == ("owner_unreachable", {"n": 1})
    with pytest.raises(UsageError) as wrong:
        asked(loop.path, Request("init", {}))
    assert wrong.value.code == "not_served"


def test_a_question_that_fits_no_line_is_not_asked(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        asked(tmp_path / "s", Request("x", {"a": "b" * 65_536}))
    assert caught.value.code == "protocol"


@pytest.mark.parametrize("place", ["missing", "stale", "a/b", "file/s", "n" * 300])
def test_nobody_is_there(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("")
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(tmp_path / "stale"))
    with pytest.raises(OwnerUnreachableError) as caught:
        asked(tmp_path / place)
    assert (caught.value.code, caught.value.retryable) == ("owner_unreachable", True)


def test_what_is_no_socket_is_said_to_be_none(tmp_path: Path) -> None:
    (tmp_path / "s").write_text("")
    with pytest.raises(RefusedError) as caught:
        asked(tmp_path / "s")
    assert caught.value.code == "not_a_socket"


PART = next(iter(encode_answer(Answer({"a": "b" * 100_000}))))


@pytest.mark.parametrize("pieces", [[], [b"{"], [PART], [PART, PART[:-9]]])
def test_an_owner_that_goes_is_unreachable(tmp_path: Path, pieces: list[bytes]) -> None:
    with owner(tmp_path / "s", says(*pieces)) as path, pytest.raises(OwnerUnreachableError):
        asked(path)


def test_an_owner_that_closes_before_it_read_is_unreachable(tmp_path: Path) -> None:
    with owner(tmp_path / "s", lambda _: None) as path, pytest.raises(OwnerUnreachableError):
        asked(path, Request("x", {"a": "b" * 60_000}))


def test_an_answer_before_the_question_was_read_counts(tmp_path: Path) -> None:
    early = b"".join(encode_answer(UnavailableError("owner_busy", "x")))
    with (
        owner(tmp_path / "s", lambda sock: sock.sendall(early)) as path,
        pytest.raises(UnavailableError) as caught,
    ):
        asked(path, Request("x", {"a": "b" * 60_000}))
    assert caught.value.code == "owner_busy"


DONE = b'{"v":1,"exit":0,"part":"{}","more":false}\n'


@pytest.mark.parametrize(
    "pieces",
    [
        [b"\n"],
        [b"HTTP/1.1 400 Bad Request\r\n"],
        [DONE.replace(b'"v":1', b'"v":2')],
        [DONE.replace(b"{}", b"")],
        [DONE.replace(b"false", b"true"), DONE.replace(b'"exit":0', b'"exit":10')],
        [DONE.replace(b"{}", b"[]")],
        [b"x" * 70_000],
        [b"x" * 10_000_000],
        [PART] * 1_500,
    ],
    ids=range(9),
)
def test_an_answer_that_is_none_is_said_to_be_none(tmp_path: Path, pieces: list[bytes]) -> None:
    with owner(tmp_path / "s", says(*pieces)) as path, pytest.raises(UnavailableError) as caught:
        asked(path)
    assert (caught.value.code, caught.value.retryable) == ("protocol", False)


def test_what_follows_the_answer_is_not_read(tmp_path: Path) -> None:
    with owner(tmp_path / "s", says(DONE + b"rest")) as path:
        assert asked(path) == Answer({})


def test_an_owner_that_does_not_answer_is_slow(tmp_path: Path) -> None:
    def wait(sock: socket.socket) -> None:
        while sock.recv(65_536):
            pass  # until the client has gone

    with owner(tmp_path / "s", wait) as path, pytest.raises(UnavailableError) as caught:
        asked(path, deadline_ms=30)
    assert caught.value.code == "owner_slow"
    assert not isinstance(caught.value, OwnerUnreachableError)


class Ticking(FakeClocks):
    def monotonic_ms(self) -> int:
        self.advance(1_000)
        return super().monotonic_ms()


@pytest.mark.parametrize("deadline_ms", [None, 3_000])
def test_an_owner_that_takes_nobody_is_unreachable(tmp_path: Path, deadline_ms: int | None) -> None:
    place = address.listen(str(tmp_path / "s"), state_dir="/nowhere")
    place.listener.listen(0)
    with address.connect(str(tmp_path / "s")), pytest.raises(OwnerUnreachableError):
        ask(str(tmp_path / "s"), STATUS, deadline_ms=deadline_ms, clocks=Ticking())
    place.remove()
    place.listener.close()


@pytest.mark.skipif(os.getuid() == 0, reason="root may talk to everybody")
def test_a_socket_that_is_not_for_us(tmp_path: Path) -> None:
    place = address.listen(str(tmp_path / "s"), state_dir="/nowhere")
    (tmp_path / "s").chmod(0)
    with pytest.raises(RefusedError) as caught:
        asked(tmp_path / "s")
    assert caught.value.code == "socket_not_allowed"
    place.remove()
    place.listener.close()
