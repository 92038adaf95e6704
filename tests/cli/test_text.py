"""Every command answers people in text: short, without JSON, with a next step after an error."""

import pytest

from tests.cli.conftest import Edge
from tests.cli.test_imports import COMMANDS, PLAN

ANSWERS = (0, 10, 20)
OFFLINE = pytest.mark.alone("serve", "cycle", reason="the command needs the state for itself")
CASES = [
    pytest.param(name, marks=OFFLINE if name in {"init", "migrate", "serve", "user reset"} else ())
    for name in COMMANDS
]


@pytest.mark.parametrize("command", CASES)
def test_a_command_answers_in_text_and_in_json(ready: Edge, command: str) -> None:
    ready.write("plan.json", PLAN)
    ready.propose(["/bin/true"], "--id", "one")
    ready.propose(["/bin/true"], "--id", "held")
    ready.approve("held", "--hold")
    if command in {"action logs", "recovery show"}:
        ready.approve("one")
        ready.run("cycle")
    words = [*command.split(), *COMMANDS[command]]
    env = {"TMPDIR": str(ready.home)}
    done = ready.call(*words, env=env)
    out, error = done.stdout.decode(), done.stderr.decode()
    if done.returncode in ANSWERS:
        assert out.strip() or command == "action logs"
        assert '{"' not in out
    else:
        assert done.returncode in {2, 3}, ready.told()
        assert out == ""
        assert error.startswith("error: "), ready.told()
    again = ready.call("--json", *words, env=env)
    if again.returncode in ANSWERS:
        assert again.stdout.startswith(b'{"')
    else:
        assert again.stdout == b""
        assert again.stderr.splitlines()[-1].startswith(b'{"error":{"code":"')
