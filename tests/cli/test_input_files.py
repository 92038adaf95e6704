"""What a malformed file gets: exit 2 or 3, one JSON error, nothing changed, never a traceback."""

import json
from typing import Any

import pytest

from tests.cli.conftest import PASSWORD, Edge, shell_plan

HEX = "a" * 64
REFUSED = (2, 3)

# --- plan files ----------------------------------------------------------------------------------

PLAN = shell_plan("/bin/true")
TEXT = json.dumps(PLAN)
SHAPES: list[Any] = [
    None, 1, "x", [], [PLAN], {},
    {**PLAN, "extra": 1},
    {**PLAN, "schema_version": 2},
    {**PLAN, "schema_version": "1"},
    {**PLAN, "schema_version": None},
    {**PLAN, "action_type": "shell exec"},
    {**PLAN, "action_type": "frobnicate"},
    {**PLAN, "action_type": 1},
    {**PLAN, "action_type": "run.create"},
    {**PLAN, "params": None},
    {**PLAN, "params": []},
    {**PLAN, "params": {}},
    {**PLAN, "params": {"argv": []}},
    {**PLAN, "params": {"argv": "true"}},
    {**PLAN, "params": {"argv": [1]}},
    {**PLAN, "params": {"argv": ["a\0b"]}},
    {**PLAN, "params": {"argv": [""]}},
    {**PLAN, "params": {"argv": ["/bin/true"] * 257}},
    {**PLAN, "params": {"argv": ["/bin/true"], "cwd": "here"}},
    {**PLAN, "params": {"argv": ["/bin/true"], "cwd": None}},
    {**PLAN, "params": {"argv": ["/bin/true"], "env": {"A=B": "x"}}},
    {**PLAN, "params": {"argv": ["/bin/true"], "env": []}},
    {**PLAN, "params": {"argv": ["/bin/true"], "timeout_ms": 0}},
    {**PLAN, "params": {"argv": ["/bin/true"], "timeout_ms": 590_001}},
    {**PLAN, "params": {"argv": ["/bin/true"], "timeout_ms": True}},
    {**PLAN, "params": {"argv": ["/bin/true"], "shell": True}},
    {**PLAN, "files": {}},
    {**PLAN, "files": None},
    {**PLAN, "files": [{"path": "x", "sha256": HEX}]},
    {**PLAN, "files": [{"path": "/x", "sha256": "0"}]},
    {**PLAN, "files": [{"path": "/x", "sha256": HEX}] * 2},
]  # fmt: skip
TEXTS = {
    "empty": b"",
    "blank": b" \n",
    "cut": TEXT.encode()[:-1],
    "twice": (TEXT * 2).encode(),
    "trailing": (TEXT + "x").encode(),
    "duplicate": b'{"schema_version":1,"schema_version":1,"action_type":"shell.exec","params":{}}',
    "duplicate inside": TEXT.replace('"argv"', '"argv":["/bin/false"],"argv"').encode(),
    "float": TEXT.replace("1,", "1.0,", 1).encode(),
    "exponent": TEXT.replace("1,", "1e0,", 1).encode(),
    "huge integer": TEXT.replace("1,", "9" * 400 + ",", 1).encode(),
    "beyond 2^53": TEXT.replace("1,", "9007199254740992,", 1).encode(),
    "nan": TEXT.replace("1,", "NaN,", 1).encode(),
    "byte order mark": b"\xef\xbb\xbf" + TEXT.encode(),
    "utf-16": TEXT.encode("utf-16"),
    "latin-1": TEXT.replace("/bin/true", "/bin/tr\xfce").encode("latin-1"),
    "cut utf-8": TEXT.replace("/bin/true", "\u9752\u9f99").encode()[:-10],
    "overlong utf-8": TEXT.encode().replace(b"/bin", b"\xc0\xafbin"),
    "lone surrogate": TEXT.replace("/bin/true", "\\ud800").encode(),
    "nul": b"\0",
    "deep": b"[" * 100_000,
    "deep object": b'{"a":' * 5_000,
    "oversized": TEXT.replace("/bin/true", "x" * 40_000).encode(),
    "oversized blanks": TEXT.encode() + b" " * 40_000,
}


def untouched(edge: Edge) -> bool:
    return edge.actions() == []


@pytest.mark.adr("0003", "3")
@pytest.mark.parametrize("name", TEXTS)
def test_a_malformed_plan_is_refused(ready: Edge, name: str) -> None:
    file = ready.write("plan.json", TEXTS[name])
    error = ready.fails("action", "propose", file, agent="bot", expect=2)
    assert error["code"] in {"malformed_json", "not_utf8", "too_large", "invalid_value"}
    again = ready.fails("action", "propose", "-", agent="bot", stdin=TEXTS[name], expect=2)
    assert again["code"] == error["code"]
    assert untouched(ready)


@pytest.mark.adr("0003", "3")
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: json.dumps(shape)[:80])
def test_a_plan_of_another_shape_is_refused(ready: Edge, shape: Any) -> None:
    file = ready.write("plan.json", json.dumps(shape))
    ready.fails("action", "propose", file, agent="bot", expect=REFUSED)
    assert untouched(ready)


def test_a_plan_that_cannot_be_read_is_refused(ready: Edge) -> None:
    (ready.home / "loop").symlink_to("loop")
    for name in ("missing.json", "missing/plan.json", ".", "loop", "/proc/self/mem", "a\nb"):
        error = ready.fails("action", "propose", name, agent="bot", expect=2)
        assert error["code"] == "file_unreadable"
    assert (
        ready.fails("action", "propose", "/dev/zero", agent="bot", expect=2)["code"] == "too_large"
    )
    assert ready.fails("action", "propose", "/dev/null", agent="bot", expect=2)
    assert untouched(ready)


# --- password, token, session and first-boot files -----------------------------------------------


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"", "invalid_value"),
        (b"\n", "invalid_value"),
        (b"\xff\xfe", "not_utf8"),
        (b"x" * 1_025, "too_large"),
        (b"x" * 100_000, "too_large"),
    ],
)
def test_a_password_file_that_holds_no_password(ready: Edge, content: bytes, code: str) -> None:
    file = ready.write("bad", content)
    before = ready.snapshot()
    assert ready.fails("login", "ana", "--password-file", file, expect=2)["code"] == code
    user = ["user", "add", "bob", "--role", "viewer", "--password-file"]
    assert ready.fails(*user, file, expect=2)["code"] == code
    assert ready.snapshot() == before


def test_a_password_comes_from_stdin_and_never_from_nowhere(ready: Edge) -> None:
    assert (
        ready.run("login", "ana", "--password-file", "-", stdin=PASSWORD)["subject"] == "user:ana"
    )
    assert ready.run("login", "ana", "--password-file", "-", stdin=f"{PASSWORD}\r\n")
    error = ready.fails("login", "ana", expect=2)
    assert "--password-file" in error["details"]["hint"]
    missing = ready.fails("login", "ana", "--password-file", "nowhere", expect=2)
    assert missing["code"] == "file_unreadable"


@pytest.mark.parametrize("content", [b"", b"two words", b"\xff", b"x" * 300, "\u9f99".encode()])
def test_a_token_file_that_holds_no_token(ready: Edge, content: bytes) -> None:
    ready.write("bad.token", content)
    ready.fails("action", "list", agent="bad", expect=2)
    ready.fails("action", "list", agent="missing", expect=2)


def test_a_token_of_nobody_is_refused(ready: Edge) -> None:
    ready.write("bad.token", "A" * 43)
    assert ready.fails("action", "list", agent="bad", expect=3)["code"] == "login_refused"


def test_a_session_that_others_may_read_is_not_believed(ready: Edge) -> None:
    ready.session_file().chmod(0o640)
    error = ready.fails("action", "list", expect=2)
    assert error["code"] == "session_file_insecure"


@pytest.mark.parametrize(
    "change",
    [
        {"schema_version": 2},
        {"owner": 1},
        {"owner": None},
        {"owner": "a b"},
        {"password_file": None},
        {"password_file": "missing"},
        {"profile": ""},
        {"profile": "laptop"},
        {"project": "No Slug"},
        {"enable": "shell.exec"},
        {"enable": ["shell.exec", 1]},
        {"enable": None},
        {"volatile": 1},
        {"extra": True},
    ],
)
def test_a_malformed_first_boot_file_creates_nothing(edge: Edge, change: dict[str, Any]) -> None:
    edge.password_file()
    boot = {"schema_version": 1, "owner": "ana", "password_file": "ana.password", "volatile": True}
    edge.fails("init", "--from", edge.write("boot.json", {**boot, **change}), expect=2)
    assert not edge.state.exists()


def test_a_first_boot_file_names_its_neighbours(edge: Edge) -> None:
    edge.password_file()
    boot = {"schema_version": 1, "owner": "ana", "password_file": "ana.password", "volatile": True}
    edge.write("boot.json", boot)
    made = edge.run("init", "--from", f"../{edge.home.name}/boot.json")
    assert (made["owner"], made["created"]) == ("ana", True)


def test_a_first_boot_file_stands_alone(edge: Edge) -> None:
    file = edge.write("boot.json", "{}")
    for words in (["--owner", "ana"], ["--volatile"], ["--enable", "shell.exec"]):
        assert edge.fails("init", "--from", file, *words, expect=2)["code"] == "usage"
    assert not edge.state.exists()


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--owner", "ana", "--profile", ""], 2),
        (["--owner", "ana", "--profile", "laptop"], 2),
        (["--owner", "ana", "--profile", "worker"], 3),
        (["--owner", "ana", "--profile", "cluster-control"], 3),
        (["--owner", "ana", "--project", "A B"], 2),
        (["--owner", "ana", "--enable", ""], 2),
        (["--owner", "ana", "--enable", "shell.exec,,"], 2),
        (["--owner", "ana", "--enable", "frobnicate"], 2),
        (["--owner", ""], 2),
        ([], 2),
    ],
)
def test_a_wrong_init_creates_nothing(edge: Edge, words: list[str], code: int) -> None:
    file = edge.password_file()
    edge.fails("init", "--volatile", "--password-file", file, *words, expect=code)
    assert not edge.state.exists()
