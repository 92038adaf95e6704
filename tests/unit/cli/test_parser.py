import getpass
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from qinglong_edge.cli.parser import new_token, parse, wants_json
from qinglong_edge.cli.request import Options, Request
from qinglong_edge.cli.table import ROWS
from qinglong_edge.domain import limits
from qinglong_edge.domain.errors import UsageError
from tests.unit.cli.surroundings import surroundings

HEX = "a" * 64
HOUR_MS = 3_600_000


def read(*argv: str, stdin: bytes = b"", environ: Mapping[str, str] | None = None) -> Request:
    return parse(argv, surroundings(stdin, environ=environ))


def refused(*argv: str, stdin: bytes = b"", environ: Mapping[str, str] | None = None) -> UsageError:
    with pytest.raises(UsageError) as raised:
        read(*argv, stdin=stdin, environ=environ)
    assert isinstance(raised.value.details["hint"], str)
    return raised.value


PLAIN: list[tuple[str, str, dict[str, Any]]] = [
    ("migrate", "migrate", {}),
    ("verify", "verify", {}),
    ("status", "status", {}),
    ("cycle", "cycle", {}),
    ("clock trust", "clock.trust", {}),
    ("demo", "demo", {}),
    ("logout", "logout", {}),
    ("handler list", "handler.list", {}),
    ("profile show edge", "profile.show", {"name": "edge"}),
    ("profile show worker", "profile.show", {"name": "worker"}),
    ("user list", "user.list", {"limit": 20, "cursor": None}),
    ("agent list --limit 64 --cursor 1.a", "agent.list", {"limit": 64, "cursor": "1.a"}),
    ("action list", "action.list", {"state": None, "limit": 20, "cursor": None}),
    (
        "action list --state due --limit 1",
        "action.list",
        {"state": "due", "limit": 1, "cursor": None},
    ),
    ("action show a-1", "action.show", {"id": "a-1"}),
    ("action logs a-1", "action.logs", {"id": "a-1"}),
    ("action wait a-1 --timeout 2.5", "action.wait", {"id": "a-1", "timeout_ms": 2_500}),
    ("action wait a-1 --timeout 0", "action.wait", {"id": "a-1", "timeout_ms": 0}),
    ("recovery list", "recovery.list", {"queue": "due", "limit": 20, "cursor": None}),
    (
        "recovery list --queue manual",
        "recovery.list",
        {"queue": "manual", "limit": 20, "cursor": None},
    ),
    ("recovery show d-1", "recovery.show", {"id": "d-1"}),
]


@pytest.mark.scenario(126)
@pytest.mark.parametrize(("line", "command", "args"), PLAIN)
def test_a_command_becomes_exactly_its_arguments(
    line: str, command: str, args: dict[str, Any]
) -> None:
    request = read(*line.split())
    assert (request.command, request.args, request.options) == (command, args, Options())


DRAWING: list[tuple[str, str, dict[str, Any], set[str]]] = [
    ("user disable bob", "user.disable", {"name": "bob"}, {"mutation_id"}),
    (
        "agent add bot --role operator",
        "agent.add",
        {"name": "bot", "role": "operator"},
        {"mutation_id", "token"},
    ),
    ("agent rotate bot", "agent.rotate", {"name": "bot"}, {"token"}),
    ("user totp bob", "user.totp", {"name": "bob"}, {"seed"}),
    ("agent disable bot", "agent.disable", {"name": "bot"}, {"mutation_id"}),
    (
        "role bind agent:bot viewer",
        "role.bind",
        {"subject": "agent:bot", "role": "viewer"},
        {"mutation_id"},
    ),
    ("role revoke user:bob", "role.revoke", {"subject": "user:bob"}, {"mutation_id"}),
    (
        "action approve a-1",
        "action.approve",
        {"id": "a-1", "action_digest": None, "hold": False},
        {"decision_id", "consumption_id", "dispatch_id"},
    ),
    (
        f"action approve a-1 --action-digest {HEX} --hold --decision-id d-1",
        "action.approve",
        {"id": "a-1", "action_digest": HEX, "hold": True, "decision_id": "d-1"},
        {"consumption_id", "dispatch_id"},
    ),
    (
        "action reject a-1 --reason too_risky",
        "action.reject",
        {"id": "a-1", "reason": "too_risky"},
        {"decision_id"},
    ),
    ("action dispatch a-1", "action.dispatch", {"id": "a-1"}, {"consumption_id", "dispatch_id"}),
    (
        "action dispatch a-1 --consumption-id c-1",
        "action.dispatch",
        {"id": "a-1", "consumption_id": "c-1"},
        {"dispatch_id"},
    ),
    ("action cancel a-1", "action.cancel", {"id": "a-1"}, {"cancel_id"}),
]


@pytest.mark.parametrize(("line", "command", "args", "drawn"), DRAWING)
def test_what_was_left_out_is_drawn(
    line: str, command: str, args: dict[str, Any], drawn: set[str]
) -> None:
    request = read(*line.split())
    found = dict(request.args)
    ids = {key: str(found.pop(key)) for key in drawn}
    assert (request.command, found) == (command, args)
    assert len(set(ids.values())) == len(ids)
    for key, text in ids.items():
        assert len(text) == (43 if key in {"token", "seed"} else 36)


def test_a_token_is_base64url_without_padding() -> None:
    assert new_token(b"\xff" * 32) == "_" * 42 + "8"
    assert new_token(b"\xfb\xef\xbe" * 8 + b"\0" * 8) == "--" * 16 + "A" * 11


def test_login_draws_its_session_and_takes_the_password_from_stdin() -> None:
    args = dict(read("login", "ana", "--password-file", "-", stdin=b"secret\n").args)
    assert len(str(args.pop("session_token"))) == 43
    assert len(str(args.pop("session_id"))) == 36
    factors = {"totp": None, "recovery_code": None}
    assert args == {"name": "ana", "password": "secret", **factors}


def test_propose_reads_the_plan_and_has_defaults(tmp_path: Path) -> None:
    (tmp_path / "plan").write_text("{}\n")
    args = dict(read("action", "propose", str(tmp_path / "plan")).args)
    assert len(str(args.pop("approval_request_id"))) == 36
    assert args == {"plan": "{}\n", "risk": None, "expires_in_ms": HOUR_MS, "repeats": None}
    words = ("--id", "a-1", "--risk", "high", "--expires-in", "15m", "--repeats", "d-1")
    assert read("action", "propose", "-", *words, stdin=b"\xe9\xbe\x99").args == {
        "plan": "龙",
        "approval_request_id": "a-1",
        "risk": "high",
        "expires_in_ms": 900_000,
        "repeats": "d-1",
    }


def test_a_plan_may_be_as_large_as_the_limit_and_no_larger() -> None:
    whole = b"x" * limits.PLAN_BYTES_MAX
    assert read("action", "propose", "-", stdin=whole).args["plan"] == whole.decode()
    assert refused("action", "propose", "-", stdin=whole + b"x").code == "too_large"


@pytest.mark.parametrize(
    ("text", "length_ms"),
    [
        ("90s", 90_000),
        ("15m", 900_000),
        ("1h", HOUR_MS),
        ("1d", 24 * HOUR_MS),
        ("90", 90_000),
        ("0.001", 1),
        ("1.5h", 5_400_000),
    ],
)
def test_a_length_of_time_has_a_unit_or_means_seconds(text: str, length_ms: int) -> None:
    request = read("action", "propose", "-", "--expires-in", text, stdin=b"{}")
    assert request.args["expires_in_ms"] == length_ms


@pytest.mark.parametrize(
    "text", ["", "s", "1w", "1 h", "+1h", "-1h", "1e3", "0", "0.0001", "25h", "86401", "٣", "1h1m"]
)
def test_another_length_of_time_is_refused(text: str) -> None:
    error = refused("action", "propose", "-", f"--expires-in={text}", stdin=b"{}")
    assert error.details["field"] == "expires_in_ms"


INIT = {"owner": "ana", "password": "secret", "profile": None, "project": None}


def test_init_takes_options_or_a_file(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("secret")
    file = str(tmp_path / "password")
    request = read("init", "--owner", "ana", "--password-file", file)
    assert request.args == {**INIT, "enable": [], "volatile": False}
    words = ("--profile", "standalone", "--project", "home", "--enable", "a,b", "--volatile")
    request = read("init", "--owner", "ana", "--password-file", file, *words)
    more = {"profile": "standalone", "project": "home", "enable": ["a", "b"], "volatile": True}
    assert request.args == {**INIT, **more}
    boot = {"schema_version": 1, "owner": "ana", "password_file": "password"}
    (tmp_path / "boot").write_text(json.dumps(boot))
    request = read("init", "--from", str(tmp_path / "boot"))
    assert request.args == {**INIT, "enable": [], "volatile": False}
    (tmp_path / "boot").write_text(json.dumps({**boot, **more}))
    assert read("init", "--from", str(tmp_path / "boot")).args == {**INIT, **more}


def test_stdin_is_read_for_one_thing_only() -> None:
    boot = b'{"schema_version":1,"owner":"ana","password_file":"-"}'
    assert refused("init", "--from", "-", stdin=boot).code == "usage"


def test_global_options_come_from_argv_before_the_environment() -> None:
    environ = {
        "QINGLONG_EDGE_STATE": "/env",
        "QINGLONG_EDGE_SOCKET": "/sock",
        "QINGLONG_EDGE_SESSION": "",
        "QINGLONG_EDGE_TOKEN_FILE": "/token",
    }
    assert read("status", environ=environ).options == Options(
        "/env", False, None, "/token", "/sock"
    )
    request = read(
        "--state", "a", "--socket=b", "status", "--token-file", "c", "--json", environ=environ
    )
    assert request.options == Options("a", True, None, "c", "b")


def test_the_state_option_of_a_list_is_told_from_the_global_one() -> None:
    request = read("--state", "pending", "action", "list", "--state", "due")
    assert (request.options.state, request.args["state"]) == ("pending", "due")
    request = read("action", "list", "--state=due", "--state", "./pending")
    assert (request.options.state, request.args["state"]) == ("./pending", "due")
    assert refused("action", "list", "--state", "pendng").details["field"] == "state"
    assert refused("action", "list", "--state", "/a", "--state", "/b").code == "usage"


def test_token_and_session_are_not_given_at_once() -> None:
    refused("status", "--session", "a", "--token-file", "b")
    refused("status", "--session", "a", environ={"QINGLONG_EDGE_TOKEN_FILE": "b"})
    both = {"QINGLONG_EDGE_SESSION": "a", "QINGLONG_EDGE_TOKEN_FILE": "b"}
    refused("status", environ=both)


@pytest.mark.parametrize(
    ("argv", "command", "topic"),
    [
        (["-h"], "help", ""),
        (["action", "--help"], "help", "action"),
        (["action", "reject", "-h"], "help", "action reject"),
        (["--state", "x", "action", "-h", "reject"], "help", "action reject"),
        (["-h", "--version"], "help", ""),
        (["--version"], "version", ""),
        (["frobnicate", "-h"], "help", ""),
    ],
)
def test_help_and_version_are_requests_too(argv: list[str], command: str, topic: str) -> None:
    request = read(*argv)
    assert (request.command, request.args) == (command, {"topic": topic})


def test_no_option_is_abbreviated() -> None:
    for command, row in ROWS.items():
        for parameter in row.parameters:
            if parameter.name.startswith("--") and len(parameter.name) > 4:
                error = refused(*command.split(), parameter.name[:-1], "x")
                assert error.code == "usage"


def test_json_is_wanted_wherever_it_stands_before_two_dashes() -> None:
    assert wants_json(["status", "--json"])
    assert not wants_json(["status", "--", "--json"])
    assert not wants_json(["--jso"])


def test_a_terminal_is_asked_once_for_a_known_password(monkeypatch: pytest.MonkeyPatch) -> None:
    prompts: list[str] = []
    answers = ["secret", "secret", "secret", "other"]

    def ask(prompt: str) -> str:
        prompts.append(prompt)
        return answers[len(prompts) - 1]

    monkeypatch.setattr(getpass, "getpass", ask)
    terminal = surroundings(stdin_is_tty=True)
    assert parse(["login", "ana"], terminal).args["password"] == "secret"
    assert prompts == ["Password for ana: "]
    answers[2] = "typo"
    with pytest.raises(UsageError) as raised:
        parse(["user", "add", "bob", "--role", "viewer"], terminal)
    assert raised.value.code == "password_mismatch"


def test_without_a_terminal_the_password_needs_a_file() -> None:
    assert "--password-file" in str(refused("login", "ana").details["hint"])


def test_a_password_loses_one_newline_and_no_more() -> None:
    words = ("login", "ana", "--password-file", "-")
    for stdin, password in ((b"a\n\n", "a\n"), (b"a\r\n", "a"), (b" a ", " a "), (b"a\r", "a\r")):
        assert read(*words, stdin=stdin).args["password"] == password
    most = b"x" * limits.PASSWORD_BYTES_MAX
    assert read(*words, stdin=most + b"\r\n").args["password"] == most.decode()
    assert refused(*words, stdin=most + b"x\n").code == "too_large"
