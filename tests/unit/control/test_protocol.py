"""The form of a line: what is taken, what is refused, and that nothing is lost on the way."""

import json
from typing import Any

import pytest

from qinglong_edge.commands.engine import Answer
from qinglong_edge.control.protocol import (
    LINE_BYTES_MAX,
    PART_BYTES_MAX,
    Part,
    Request,
    decode_answer,
    decode_part,
    decode_request,
    encode_answer,
    encode_request,
)
from qinglong_edge.domain.errors import (
    EXITS,
    CommitUnknownError,
    DamagedError,
    InvariantBroken,
    QinglongError,
    RefusedError,
    RowDamagedError,
    UnavailableError,
    UsageError,
    exit_code_of,
)

REQUEST: dict[str, Any] = {
    "v": 1, "command": "status", "args": {}, "session_token": None, "agent_token": None,
}  # fmt: skip
PART: dict[str, Any] = {"v": 1, "exit": 0, "part": "{}", "more": False}
FLAWS: tuple[object, ...] = ("2", None, 0, 2, [1], 0.0, True)  # of a version, and of most others
NO_TOKENS: tuple[object, ...] = ("x" * 257, 1, False, [], {})
NO_DETAILS: tuple[object, ...] = ([[]], 0.5, [{}])
DEEP = b'{"a":' * 500 + b"1" + b"}" * 500


def text(value: object) -> bytes:
    return json.dumps(value).encode() + b"\n"


def carried(result: Answer | QinglongError) -> Answer | QinglongError:
    return decode_answer(map(decode_part, encode_answer(result)))


def test_a_request_comes_back_as_it_was() -> None:
    request = Request("action.propose", {"plan": '{"叶": "\\"\n"}', "n": [1, None]}, "s" * 43, None)
    line = encode_request(request)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert decode_request(line) == request


def request_of(size: int) -> Request:
    return Request("x", {"a": "b" * (size - len(encode_request(Request("x", {"a": ""}))))})


def test_a_line_has_a_bound_exactly() -> None:
    assert len(encode_request(request_of(LINE_BYTES_MAX))) == LINE_BYTES_MAX
    assert decode_request(encode_request(request_of(LINE_BYTES_MAX))).command == "x"
    with pytest.raises(UsageError, match="65536") as caught:
        encode_request(request_of(LINE_BYTES_MAX + 1))
    assert caught.value.code == "protocol"
    with pytest.raises(UsageError, match="65536"):
        decode_request(b" " * LINE_BYTES_MAX + b"\n")


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"\n",
        b"{}\n",
        b"[]\n",
        b"null\n",
        text(REQUEST)[:-1],
        text(REQUEST) + b"\n",
        text(REQUEST) + text(REQUEST),
        *(text({key: REQUEST[key] for key in REQUEST if key != left}) for left in REQUEST),
        text(REQUEST | {"socket": "/etc/passwd"}),
        *(text(REQUEST | {"v": given}) for given in FLAWS),
        *(text(REQUEST | {"command": given}) for given in ("", "x" * 65, *FLAWS[1:])),
        *(text(REQUEST | {"args": given}) for given in FLAWS),
        *(text(REQUEST | {"session_token": given}) for given in NO_TOKENS),
        *(text(REQUEST | {"agent_token": given}) for given in NO_TOKENS),
        b'{"v":1,' + text(REQUEST)[1:],
        text(REQUEST | {"v": 1.0}),
        text(REQUEST | {"args": {"n": 2**53}}),
        text(REQUEST | {"args": {"n": 0.5}}),
        text(REQUEST | {"args": {"n": float("inf")}}),
        text(REQUEST | {"args": {"n": "\ud800"}}),
        text(REQUEST).replace(b"status", b"sta\xfftus"),
        text(REQUEST).replace(b"{}", DEEP),
        DEEP + b"\n",
        b"[" * 60_000 + b"\n",
        b"\x00" * 100 + b"\n",
    ],
)
def test_what_is_no_request_is_refused(line: bytes) -> None:
    with pytest.raises(UsageError) as caught:
        decode_request(line)
    assert caught.value.code == "protocol"


def test_a_token_has_a_bound_exactly() -> None:
    assert decode_request(text(REQUEST | {"agent_token": "x" * 256})).agent_token == "x" * 256


def test_what_is_not_text_is_not_sent() -> None:
    with pytest.raises(UsageError) as caught:
        encode_request(Request("x", {"a": "\udcff"}))
    assert caught.value.code == "protocol"


@pytest.mark.parametrize("exit_code", [0, 10, 20])
def test_an_answer_comes_back_as_it_was(exit_code: int) -> None:
    answer = Answer({"a": [1, None, {"叶": True}], "b": '\x00\x7f"\\\n'}, exit_code)
    assert carried(answer) == answer


@pytest.mark.parametrize("piece", ["a", '"', "\\", "叶", "😀", "\x01", '叶"', "a叶😀\\"])
@pytest.mark.parametrize("size", [PART_BYTES_MAX - 30, PART_BYTES_MAX, 3 * PART_BYTES_MAX])
def test_a_long_answer_is_cut_into_lines(piece: str, size: int) -> None:
    answer = Answer({"a": piece * (size // len(piece.encode()))})
    lines = list(encode_answer(answer))
    assert carried(answer) == answer
    assert all(len(line) <= LINE_BYTES_MAX for line in lines)
    assert all(len(decode_part(line).text.encode()) <= PART_BYTES_MAX for line in lines)
    assert [decode_part(line).more for line in lines] == [True] * (len(lines) - 1) + [False]


def test_a_part_is_full_before_the_next_begins() -> None:
    body = {"a": "b" * (PART_BYTES_MAX - len('{"a":""}'))}
    assert len(list(encode_answer(Answer(body)))) == 1
    two = list(encode_answer(Answer({"a": body["a"] + "b"})))
    assert [len(decode_part(line).text) for line in two] == [PART_BYTES_MAX, 1]


def test_five_megabytes_come_back() -> None:
    answer = Answer({"text": '0123456789 "quoted" 叶\n' * 200_000})
    assert carried(answer) == answer


def test_the_name_of_a_file_that_is_not_text_comes_back() -> None:
    answer = Answer({"state": "/\udcff/叶"})
    assert carried(answer) == answer


@pytest.mark.parametrize("answer", [Answer({}, 1), Answer({}, 3), Answer({"a": "b" * 2**24})])
def test_an_answer_that_does_not_fit_is_a_bug(answer: Answer) -> None:
    with pytest.raises(InvariantBroken):
        encode_answer(answer)


ERRORS: list[tuple[QinglongError, int]] = [
    (UsageError("bad", "m"), 2),
    (RefusedError("no", "m", {"winner": "x", "n": 3, "items": ["a", None, 2], "is": True}), 3),
    (UnavailableError("later", "叶"), 4),
    (CommitUnknownError("commit_unknown", "m", {"a": None}), 4),
    (DamagedError("damaged", "m"), 5),
    (RowDamagedError("row", "m"), 5),
    (QinglongError("internal_error", "m"), 70),
    (InvariantBroken("m", {"at": "x"}), 70),
]


@pytest.mark.parametrize(("error", "exit_code"), ERRORS)
@pytest.mark.parametrize("retryable", [True, False])
def test_an_error_comes_back_in_its_family(
    error: QinglongError, exit_code: int, *, retryable: bool
) -> None:
    error.retryable = retryable
    assert exit_code_of(error) == exit_code
    assert {decode_part(line).exit_code for line in encode_answer(error)} == {exit_code}
    found = carried(error)
    assert isinstance(found, QinglongError)
    assert type(found) is EXITS[exit_code]
    assert isinstance(error, type(found))
    assert (found.code, found.message, found.details) == (error.code, error.message, error.details)
    assert found.retryable is retryable


@pytest.mark.parametrize(
    "line",
    [
        b"",
        text(PART)[:-1],
        text(PART) + text(PART),
        *(text({key: PART[key] for key in PART if key != left}) for left in PART),
        text(PART | {"extra": 1}),
        *(text(PART | {"v": given}) for given in (0, 2, True, "1")),
        *(text(PART | {"exit": given}) for given in (1, 6, 130, -1, "0", None, False, True)),
        *(text(PART | {"part": given}) for given in ("", None, 1, "a" * (PART_BYTES_MAX + 1))),
        *(text(PART | {"more": given}) for given in (0, 1, None, "false")),
        text(PART | {"part": "\ud800"}),
        text(PART | {"part": "a" * LINE_BYTES_MAX}),
    ],
)
def test_what_is_no_part_is_refused(line: bytes) -> None:
    with pytest.raises(UsageError) as caught:
        decode_part(line)
    assert caught.value.code == "protocol"


def failure(**changed: object) -> str:
    error = {"code": "c", "message": "m", "retryable": True, "details": {}} | changed
    return json.dumps({"error": error})


@pytest.mark.parametrize(
    "found",
    [
        [],
        [Part(0, "{}", more=True)],
        [Part(0, "{}", more=False), Part(0, "{}", more=False)],
        [Part(0, "{", more=True), Part(10, "}", more=False)],
        [Part(0, "{", more=False)],
        [Part(0, "[]", more=False)],
        [Part(0, "[" * 40_000, more=False)],
        [Part(3, "{}", more=False)],
        [Part(3, '{"error":{}}', more=False)],
        [Part(3, failure() + "x", more=False)],
        [Part(3, failure(extra=1), more=False)],
        [Part(3, '{"x":1,' + failure()[1:], more=False)],
        *([Part(3, failure(code=given), more=False)] for given in ("", "c" * 65, None, 1)),
        *([Part(3, failure(message=given), more=False)] for given in FLAWS[1:]),
        *([Part(3, failure(retryable=given), more=False)] for given in FLAWS[:-1]),
        *([Part(3, failure(details=given), more=False)] for given in ({"a": {}}, *FLAWS)),
        *([Part(3, failure(details={"a": given}), more=False)] for given in NO_DETAILS),
    ],
)
def test_what_is_no_answer_is_refused(found: list[Part]) -> None:
    with pytest.raises(UsageError) as caught:
        decode_answer(found)
    assert caught.value.code == "protocol"
