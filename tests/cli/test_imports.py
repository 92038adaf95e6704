"""What each command loads: nothing that OpenWrt keeps outside python3-light and python3-sqlite3.

The table names the modules of CPython 3.11 and 3.13 whose import needs another package there.
"""

import subprocess

import pytest

from tests.cli.conftest import Edge, shell_plan

ELSEWHERE = frozenset(
    [
        "_asyncio",
        "_ctypes",
        "_decimal",
        "_hashlib",
        "_lzma",
        "_multiprocessing",
        "_ssl",
        "_uuid",
        "asyncio",
        "cgi",
        "cgitb",
        "compileall",
        "concurrent.futures",
        "ctypes",
        "curses",
        "dbm",
        "decimal",
        "distutils",
        "doctest",
        "email",
        "ensurepip",
        "fractions",
        "http.client",
        "http.server",
        "importlib.metadata",
        "importlib.resources",
        "lib2to3",
        "logging",
        "lzma",
        "mailbox",
        "mimetypes",
        "multiprocessing",
        "nntplib",
        "pathlib",
        "plistlib",
        "pydoc",
        "pydoc_data",
        "pyexpat",
        "readline",
        "smtplib",
        "ssl",
        "statistics",
        "stringprep",
        "unicodedata",
        "unittest",
        "urllib",
        "uuid",
        "venv",
        "wsgiref",
        "xml",
        "xmlrpc",
        "zipapp",
        "zipfile",
    ]
)
OPENSSL = frozenset({"_hashlib", "hashlib", "_ssl", "ssl"})
WITH_PASSWORD = frozenset({"init", "login", "user add", "user reset"})

pytestmark = pytest.mark.alone("serve", "cycle", reason="the owner would load what is judged")
PLAN = shell_plan("/bin/true")
COMMANDS: dict[str, list[str]] = {
    "status": [],
    "cycle": [],
    "verify": [],
    "migrate": [],
    "profile show": ["edge"],
    "action propose": ["plan.json", "--id", "new", "--token-file", "bot.token"],
    "action list": [],
    "action show": ["one"],
    "action approve": ["one"],
    "action reject": ["one", "--reason", "no"],
    "action dispatch": ["held"],
    "action cancel": ["one"],
    "action wait": ["one", "--timeout", "0.01"],
    "action logs": ["one"],
    "recovery list": [],
    "recovery show": ["one"],
    "recovery resolve": [
        "one",
        "--decision",
        "abandon_unknown",
        "--reason",
        "looked",
        "--expected-version",
        "2",
    ],
    "task list": [],
    "task show": ["nothing"],
    "handler list": [],
    "user list": [],
    "user add": ["ben", "--role", "viewer", "--password-file", "ana.password"],
    "user disable": ["nobody"],
    "user totp": ["ana"],
    "user reset": ["ana", "--password-file", "ana.password"],
    "clock trust": [],
    "agent add": ["other", "--role", "viewer"],
    "agent list": [],
    "agent rotate": ["bot"],
    "agent disable": ["bot"],
    "role bind": ["agent:bot", "viewer"],
    "role revoke": ["agent:bot"],
    "login": ["ana", "--password-file", "ana.password"],
    "logout": [],
    "init": ["--owner", "ana", "--password-file", "ana.password", "--volatile"],
    "demo": [],
    "serve": ["--socket-group", "no-such-group", "--socket", "nowhere/control.sock"],
}


def loaded(edge: Edge, *words: str) -> tuple[int, set[str]]:
    """Return the exit code of a call and the names of all modules that it imported."""
    program = edge.command("--json", *words)
    done = subprocess.run(
        [program[0], "-S", "-X", "importtime", *program[1:]],
        capture_output=True,
        env=edge.environment({"TMPDIR": str(edge.home)}),
        cwd=edge.home,
        check=False,
    )
    lines = [line for line in done.stderr.decode().splitlines() if line.startswith("import time:")]
    return done.returncode, {line.rpartition("|")[2].strip() for line in lines}


def outside(names: set[str]) -> set[str]:
    """Return the modules that are, or stand below, one that lies elsewhere."""
    return {name for name in names if any(f"{name}.".startswith(f"{far}.") for far in ELSEWHERE)}


@pytest.mark.adr("0001", "5")
@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_loads_only_what_a_router_has(ready: Edge, command: str) -> None:
    ready.write("plan.json", PLAN)
    ready.propose(["/bin/true"], "--id", "one")
    ready.propose(["/bin/true"], "--id", "held")
    ready.approve("held", "--hold")
    if command == "cycle":
        ready.approve("one")
    if command in {"action logs", "recovery show"}:
        ready.approve("one")
        ready.run("cycle")
    code, names = loaded(ready, *command.split(), *COMMANDS[command])
    assert code in {0, 2, 3, 10, 20}, ready.told()
    assert "sqlite3" in names or command in {"profile show", "demo", "init"}
    allowed = {"_hashlib"} if command in WITH_PASSWORD else set()
    if command == "demo":
        allowed |= {"lzma", "_lzma"}  # shutil tries them and does without
    assert outside(names) - allowed == set()
    if command not in WITH_PASSWORD:
        assert names & OPENSSL == set()


def test_the_table_of_commands_is_whole(edge: Edge) -> None:
    text = edge.run("-h", json=False)["stdout"].partition("commands:\n")[2].partition("\n\n")[0]
    listed = {line.strip().partition("  ")[0].strip() for line in text.splitlines()}
    assert listed == set(COMMANDS)


def test_the_check_sees_a_module_from_elsewhere() -> None:
    assert outside({"json", "sqlite3", "xml.etree", "logging"}) == {"xml.etree", "logging"}
