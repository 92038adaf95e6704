import io
import json
import stat
from pathlib import Path
from typing import Any

import pytest

from qinglong_edge import __version__
from qinglong_edge.cli.main import main
from qinglong_edge.cli.request import Request, Surroundings
from qinglong_edge.commands.engine import Answer
from qinglong_edge.domain.canonical import JsonObject
from qinglong_edge.domain.errors import (
    CommitUnknownError,
    DamagedError,
    InvariantBroken,
    QinglongError,
    RefusedError,
    UnavailableError,
    UsageError,
)
from tests.unit.cli.surroundings import printed, surroundings


class Carrier:
    """Answer every request with the same answer or error, and remember the requests."""

    def __init__(self, answer: Answer | BaseException) -> None:
        self.answer = answer
        self.requests: list[Request] = []

    def __call__(self, request: Request, _around: Surroundings) -> Answer:
        self.requests.append(request)
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer


def play(
    *argv: str, answer: Answer | BaseException, stdin: bytes = b"", **environ: str
) -> tuple[int, str, str]:
    around = surroundings(stdin, environ=environ)
    code = main(argv, around, carry=Carrier(answer))
    return code, *printed(around)


def error_in(text: str) -> dict[str, Any]:
    whole = json.loads(text.splitlines()[-1])
    assert list(whole) == ["error"]
    error: dict[str, Any] = whole["error"]
    assert list(error) == ["code", "message", "retryable", "details"]
    return error


FAMILIES = [
    (UsageError("c", "m"), 2, False),
    (RefusedError("c", "m", {"winner": "x"}), 3, False),
    (UnavailableError("c", "m"), 4, True),
    (CommitUnknownError("c", "m"), 4, True),
    (DamagedError("c", "m"), 5, False),
    (QinglongError("c", "m"), 70, False),
]


@pytest.mark.parametrize(("error", "code", "retryable"), FAMILIES)
def test_every_family_has_its_exit_code(error: QinglongError, code: int, retryable: bool) -> None:
    found, out, text = play("status", "--json", answer=error)
    assert (found, out) == (code, "")
    told = error_in(text)
    assert (told["code"], told["message"], told["retryable"]) == ("c", "m", retryable)
    assert told["details"] == error.details


def test_a_broken_invariant_is_a_bug() -> None:
    code, out, text = play("status", "--json", answer=InvariantBroken("m"))
    assert (code, out, error_in(text)["code"]) == (70, "", "invariant_broken")


@pytest.mark.parametrize("error", [ValueError("/secret"), MemoryError(), RecursionError("x")])
def test_a_bug_shows_its_place_and_none_of_its_words(error: Exception) -> None:
    code, out, text = play("status", "--json", answer=error)
    assert (code, out) == (70, "")
    told = error_in(text)
    assert told["code"] == "internal_error"
    assert told["details"]["type"] == type(error).__name__
    assert told["details"]["at"].startswith("qinglong_edge.cli.main:")
    assert "/secret" not in text
    _, _, plain_text = play("status", answer=error)
    assert "Traceback" not in plain_text
    assert "/secret" not in plain_text


def test_a_missing_module_names_its_package() -> None:
    missing = ModuleNotFoundError("No module named 'sqlite3'", name="sqlite3")
    code, _, text = play("status", "--json", answer=missing)
    told = error_in(text)
    assert (code, told["code"], told["retryable"]) == (4, "module_missing", False)
    assert "python3-sqlite3" in told["details"]["hint"]
    code, _, _ = play("status", answer=ImportError("x", name="qinglong_edge.cli.wiring"))
    assert code == 70


def test_an_interruption_ends_quietly() -> None:
    assert play("status", answer=KeyboardInterrupt()) == (130, "", "")


@pytest.mark.parametrize("code", [0, 10, 20])
def test_an_answer_is_one_line_of_json_whatever_its_code(code: int) -> None:
    body = {"a": ["line\nend", "\u9f99", "\x9b"], "b": None}
    found, out, text = play("status", "--json", answer=Answer(body, code))
    assert (found, text) == (code, "")
    assert out.count("\n") == 1
    assert out.isascii()
    assert json.loads(out) == body


def test_an_error_for_people_escapes_and_hints() -> None:
    error = RefusedError("login_required", "bad\x1b[31m", {"winner": "a\nb", "field": "x"})
    code, out, text = play("status", answer=error)
    assert (code, out) == (3, "")
    assert text.splitlines() == [
        "error: bad\\x1b[31m [login_required]",
        "  winner: a\\nb".replace("\\n", "\\x0a"),
        "hint: qinglong-edge login NAME opens a session",
    ]


def test_json_is_honoured_where_parsing_fails() -> None:
    code, out, text = play("frobnicate", "--json", answer=Answer({}))
    assert (code, out, error_in(text)["code"]) == (2, "", "unknown_command")


def test_help_and_version_need_no_store() -> None:
    answer = InvariantBroken("not asked")
    assert play("--version", answer=answer) == (0, f"qinglong-edge {__version__}\n", "")
    code, out, _ = play("--version", "--json", answer=answer)
    assert (code, json.loads(out)) == (0, {"version": __version__})
    code, out, _ = play("action", "list", "-h", answer=answer)
    assert code == 0
    assert out.startswith("usage: qinglong-edge action list [--state STATE]")


SESSION: JsonObject = {
    "subject": "user:ana",
    "assurance": "single_factor",
    "authenticated_at_ms": 1,
    "expires_at_ms": 2,
    "session_id": "s-1",
}


def test_login_keeps_the_session_and_does_not_print_the_token(tmp_path: Path) -> None:
    file = tmp_path / "session"
    words = ("login", "ana", "--password-file", "-", "--session", str(file), "--json")
    code, out, text = play(*words, answer=Answer(SESSION), stdin=b"secret")
    assert (code, text) == (0, "")
    shown = dict(SESSION)
    del shown["session_id"]
    assert json.loads(out) == {"session_file": str(file), **shown}
    kept = json.loads(file.read_text())
    assert kept["subject"] == "user:ana"
    assert len(kept["session_token"]) == 43
    assert kept["session_token"] not in out
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    code, out, _ = play("logout", "--session", str(file), "--json", answer=Answer({"ended": True}))
    assert (code, json.loads(out)) == (0, {"ended": True})
    assert not file.exists()


def test_a_refused_login_keeps_the_old_session(tmp_path: Path) -> None:
    file = tmp_path / "session"
    words = ("login", "ana", "--password-file", "-", "--session", str(file))
    play(*words, answer=Answer(SESSION), stdin=b"secret")
    before = file.read_bytes()
    code, _, _ = play(*words, answer=RefusedError("login_refused", "no"), stdin=b"wrong")
    assert (code, file.read_bytes()) == (3, before)


class Gone(io.StringIO):
    """A stream whose reader has gone, or whose disk is full."""

    def __init__(self, error: OSError) -> None:
        super().__init__()
        self.error = error

    def write(self, _text: str, /) -> int:
        raise self.error


def test_a_reader_that_has_gone_does_not_undo_the_answer() -> None:
    around = surroundings()
    streams = around.streams._replace(stdout=Gone(BrokenPipeError()))
    answer = Carrier(Answer({"health": "ok"}, 10))
    assert main(["status"], around._replace(streams=streams), carry=answer) == 10
    assert printed(around)[1] == ""


def test_an_answer_that_cannot_be_written_is_a_failure() -> None:
    around = surroundings()
    streams = around.streams._replace(stdout=Gone(OSError(28, "full")))
    found = main(["status", "--json"], around._replace(streams=streams), carry=Carrier(Answer({})))
    assert (found, error_in(printed(around)[1])["code"]) == (4, "output_failed")


def test_an_error_that_nobody_reads_still_has_its_exit_code() -> None:
    around = surroundings()
    streams = around.streams._replace(stderr=Gone(BrokenPipeError()))
    answer = Carrier(RefusedError("c", "m"))
    assert main(["status"], around._replace(streams=streams), carry=answer) == 3


def test_a_terminal_bounds_the_width() -> None:
    items = [{"name": "n" * 200, "dispatch_id": "d" * 36}]
    around = surroundings(environ={"COLUMNS": "60"}, stdout_is_tty=True)
    main(["user", "list"], around, carry=Carrier(Answer({"items": items, "next_cursor": None})))
    lines = printed(around)[0].splitlines()
    assert max(map(len, lines)) == 60
    assert "d" * 36 in lines[1]


@pytest.mark.parametrize(
    ("error", "step"),
    [
        (UnavailableError("storage_error", "m"), "owner and the mode"),
        (UnavailableError("manifest_unreadable", "m"), "STATE/manifest.json"),
        (UnavailableError("log_unreadable", "m"), "STATE/logs"),
        (DamagedError("log_damaged", "m"), "STATE/logs"),
        (DamagedError("store_rolled_back", "m"), "newer database"),
        (DamagedError("row_damaged", "m"), "verify; where it answers the same"),
    ],
)
def test_an_error_about_a_file_of_the_state_says_what_to_do(
    error: QinglongError, step: str
) -> None:
    _, _, text = play("status", answer=error)
    assert step in text.splitlines()[-1]
