"""The exact form of what passes the socket; pure (architecture 3.2).

A request is one line. An answer is one or more lines with the same exit code; their parts joined
are the JSON text of the body, or of `{"error": ...}` where the exit code is that of a failure. No
member of a request names a file that the owner would open. Whatever is not exactly of this form
raises `UsageError` (`protocol`).
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from qinglong_edge.commands.engine import Answer
from qinglong_edge.domain.canonical import (
    Fields,
    Json,
    JsonObject,
    canonical_bytes,
    parse_object,
)
from qinglong_edge.domain.errors import (
    EXITS,
    Details,
    InvariantBroken,
    QinglongError,
    UsageError,
    exit_code_of,
)

VERSION = 1
LINE_BYTES_MAX = 65_536  # with its newline: a plan of 32 KiB and its frame
PART_BYTES_MAX = 49_152  # leaves a quarter of a line for the frame and for escaped quotes
ANSWER_BYTES_MAX = 16_777_216  # twice a log of 1 MiB in which each byte is escaped as \u00xx
COMMAND_CHARS_MAX = 64
TOKEN_CHARS_MAX = 256  # ours have 43; what is longer is no token of any version
CODE_CHARS_MAX = 64

CODE = "protocol"
EXITS_DONE = frozenset({0, 10, 20})


class Request(NamedTuple):
    """Hold one command and what its caller shows."""

    command: str
    args: JsonObject
    session_token: str | None = None
    agent_token: str | None = None


class Part(NamedTuple):
    """Hold one line of an answer."""

    exit_code: int
    text: str
    more: bool


def protocol_error(message: str) -> UsageError:
    """Return the one error of everything that has not the form of a line."""
    return UsageError(CODE, message)


def encode_request(request: Request) -> bytes:
    """Return the line; raises `UsageError` (`protocol`) for what no line can hold."""
    line = _line(
        {
            "v": VERSION,
            "command": request.command,
            "args": request.args,
            "session_token": request.session_token,
            "agent_token": request.agent_token,
        }
    )
    if len(line) > LINE_BYTES_MAX:
        raise protocol_error(f"the request has over {LINE_BYTES_MAX} bytes")
    return line


def decode_request(line: bytes) -> Request:
    """Read one line, its newline included."""
    fields = _frame(line, "request")
    command, args = fields.take("command"), fields.take("args")
    session, agent = fields.take("session_token"), fields.take("agent_token")
    fields.done()
    if not isinstance(command, str) or not 1 <= len(command) <= COMMAND_CHARS_MAX:
        raise protocol_error(f"request.command: must be 1 to {COMMAND_CHARS_MAX} characters")
    if not isinstance(args, Mapping):
        raise protocol_error("request.args: must be an object")
    return Request(command, args, _token(session), _token(agent))


def encode_answer(result: Answer | QinglongError) -> Iterator[bytes]:
    """Return the lines of an answer or of an error."""
    exit_code, text = text_of(result)
    return cut(exit_code, text)


def text_of(result: Answer | QinglongError) -> tuple[int, bytes]:
    """Return the exit code and the whole text of an answer, still in one piece.

    Raises `InvariantBroken` for an answer that this form cannot carry: a command never makes one.
    """
    if isinstance(result, QinglongError):
        return exit_code_of(result), _utf8({"error": _error_body(result)})
    text = _utf8(result.body)
    if result.exit_code not in EXITS_DONE or len(text) > ANSWER_BYTES_MAX:
        raise InvariantBroken("an answer does not fit the protocol")
    return result.exit_code, text


def cut(exit_code: int, text: bytes) -> Iterator[bytes]:
    """Yield the lines of a text, cut between characters; each is made when it is asked for."""
    at = 0
    while True:
        end = _boundary(text, at + PART_BYTES_MAX)
        line = _part(exit_code, text[at:end], more=end < len(text))
        while len(line) > LINE_BYTES_MAX:  # full of quotes and backslashes: each takes two bytes
            end = _boundary(text, at + (end - at) * 3 // 4)
            line = _part(exit_code, text[at:end], more=True)
        yield line
        at = end
        if at == len(text):
            return


def decode_part(line: bytes) -> Part:
    """Read one line of an answer, its newline included."""
    fields = _frame(line, "answer")
    exit_code, text, more = fields.take("exit"), fields.take("part"), fields.take("more")
    fields.done()
    if type(exit_code) is not int or exit_code not in EXITS_DONE | EXITS.keys():
        raise protocol_error("answer.exit: is no exit code of this program")
    if not isinstance(text, str) or not 1 <= len(text.encode()) <= PART_BYTES_MAX:
        raise protocol_error(f"answer.part: must be text of 1 to {PART_BYTES_MAX} bytes")
    if not isinstance(more, bool):
        raise protocol_error("answer.more: must be true or false")
    return Part(exit_code, text, more)


def decode_answer(parts: Iterable[Part]) -> Answer | QinglongError:
    """Put the parts of one answer together; an error is returned, not raised."""
    found = list(parts)
    if not found or [part.more for part in found] != [True] * (len(found) - 1) + [False]:
        raise protocol_error("the answer has no end, or goes on after it")
    exit_code = found[0].exit_code
    if any(part.exit_code != exit_code for part in found):
        raise protocol_error("the parts of the answer disagree")
    try:
        body = json.loads("".join(part.text for part in found))
    except (ValueError, RecursionError) as error:
        raise protocol_error("the answer is not JSON") from error
    if not isinstance(body, dict):
        raise protocol_error("the answer is not an object")
    if exit_code in EXITS_DONE:
        return Answer(body, exit_code)
    return _decode_error(exit_code, body)


def _decode_error(exit_code: int, body: Json) -> QinglongError:
    try:
        outer = Fields(body, "answer")
        fields = Fields(outer.take("error"), "error")
        outer.done()
        code, message = fields.take("code"), fields.take("message")
        retryable, details = fields.take("retryable"), fields.take("details")
        fields.done()
    except UsageError as error:
        raise protocol_error(error.message) from error
    if not isinstance(code, str) or not 1 <= len(code) <= CODE_CHARS_MAX:
        raise protocol_error(f"error.code: must be 1 to {CODE_CHARS_MAX} characters")
    if not isinstance(message, str) or not isinstance(retryable, bool):
        raise protocol_error("error: must have a message, and say whether to try again")
    found = EXITS[exit_code](code, message, _details(details))
    found.retryable = retryable
    return found


def _details(value: Json) -> Details:
    if not isinstance(value, Mapping):
        raise protocol_error("error.details: must be an object")
    details: Details = {}
    for name, given in value.items():
        if given is None or isinstance(given, str | int):
            details[name] = given
        elif isinstance(given, Sequence) and all(
            item is None or isinstance(item, str | int) for item in given
        ):
            details[name] = [item for item in given if item is None or isinstance(item, str | int)]
        else:
            raise protocol_error("error.details: must hold words and numbers")
    return details


def _error_body(error: QinglongError) -> JsonObject:
    return {
        "code": error.code,
        "message": error.message,
        "retryable": error.retryable,
        "details": error.details,
    }


def _frame(line: bytes, what: str) -> Fields:
    """Check size, end, JSON and version, in this order."""
    if len(line) > LINE_BYTES_MAX:
        raise protocol_error(f"{what}: over {LINE_BYTES_MAX} bytes")
    if line.find(b"\n") != len(line) - 1:
        raise protocol_error(f"{what}: must be one line, ended by a newline")
    try:
        members = parse_object(line, what, most=LINE_BYTES_MAX)
    except UsageError as error:
        raise protocol_error(error.message) from error
    version = members.get("v")
    if type(version) is not int or version != VERSION:
        raise protocol_error(f"{what}.v: must be {VERSION}")
    fields = _Members(members, what)
    fields.take("v")
    return fields


class _Members(Fields):
    """Refuse a missing or an extra member as everything else here is refused."""

    def take(self, name: str) -> Json:
        try:
            return super().take(name)
        except UsageError as error:
            raise protocol_error(error.message) from error

    def done(self) -> None:
        try:
            super().done()
        except UsageError as error:
            raise protocol_error(error.message) from error


def _token(value: Json) -> str | None:
    if value is None or (isinstance(value, str) and len(value) <= TOKEN_CHARS_MAX):
        return value
    raise protocol_error(f"request: a token must be null or at most {TOKEN_CHARS_MAX} characters")


def _line(value: JsonObject) -> bytes:
    try:
        return canonical_bytes(value) + b"\n"
    except UnicodeEncodeError as error:
        raise protocol_error("the request holds what is not UTF-8 text") from error


def _utf8(value: JsonObject) -> bytes:
    """Return JSON text; the name of a file that is not UTF-8 goes through as an escape."""
    try:
        return canonical_bytes(value)
    except UnicodeEncodeError:
        return json.dumps(value, separators=(",", ":"), allow_nan=False).encode("ascii")


def _part(exit_code: int, text: bytes, *, more: bool) -> bytes:
    return _line({"v": VERSION, "exit": exit_code, "part": text.decode(), "more": more})


def _boundary(text: bytes, end: int) -> int:
    """Return the nearest end before `end` that cuts no character of UTF-8 in two."""
    if end >= len(text):
        return len(text)
    while text[end] & 0xC0 == 0x80:  # noqa: PLR2004  # the bytes after the first begin with 10
        end -= 1
    return end
