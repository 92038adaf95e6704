"""The command that runs the tests needs nothing but Python, and says so where it needs more."""

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.package.source_tree import ROOT
from tools import test as command

SCRIPT = ROOT / "tools" / "test.py"
NO_INDEX = {**os.environ, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": ""}
NOWHERE = "qinglong-edge-is-on-no-index>=1"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Make a project whose dev group is empty, so that nothing needs a network."""
    (tmp_path / "tools").mkdir()
    shutil.copy(SCRIPT, tmp_path / "tools")
    (tmp_path / "pyproject.toml").write_text(
        f'[dependency-groups]\ndev = []\nmore = ["{NOWHERE}"]\n'
    )
    (tmp_path / "three.py").write_text("import sys\nprint(sys.argv[1:])\nsys.exit(3)\n")
    return tmp_path


def start(project: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, project / "tools" / "test.py", *arguments],
        env=NO_INDEX,
        cwd=project.parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(project: Path, *arguments: str) -> tuple[int, str, str]:
    process = start(project, *arguments)
    out, err = process.communicate()
    return process.returncode, out, err


@pytest.mark.slow
def test_the_environment_is_made_once_whatever_was_left_and_whoever_else_makes_it(
    project: Path,
) -> None:
    home = project / ".venv" / command.VERSION
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "python").write_text("a creation that was interrupted")

    both = [start(project, "--prepare") for _ in range(2)]
    errors = [process.communicate()[1] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert sorted(errors) == ["", f"making {home}\n"]

    # The arguments arrive, and the exit code comes back.
    assert run(project, "--module", "three", "-q", "a") == (3, "['-q', 'a']\n", "")
    assert run(project, "--module", "three", "--", "--group") == (3, "['--group']\n", "")

    # What cannot be installed is said, is not remembered, and is no traceback.
    code, _, err = run(project, "--group", "more", "--prepare")
    assert code == command.CANNOT_PREPARE
    assert NOWHERE in err
    assert "Traceback" not in err
    assert (home / "installed.txt").read_text() == ""

    # What was installed once is not looked for again.
    (home / "installed.txt").write_text(f"{NOWHERE}\n")
    assert run(project, "--group", "more", "--prepare") == (0, "", "")


def test_an_environment_is_believed_only_while_its_interpreter_answers(tmp_path: Path) -> None:
    environment = command.Environment(tmp_path)
    environment.python.parent.mkdir()
    environment.python.symlink_to(sys.executable)
    assert not environment._works()
    (tmp_path / "installed.txt").touch()
    assert environment._works()
    environment.python.unlink()
    environment.python.symlink_to(tmp_path / "uninstalled")
    assert not environment._works()


@pytest.mark.parametrize("name", ["venv", "ensurepip"])
def test_a_missing_module_is_told_with_the_package_that_brings_it(project: Path, name: str) -> None:
    script = str(project / "tools" / "test.py")
    program = (
        f"import runpy, sys; sys.modules[{name!r}] = None; sys.argv = [{script!r}]; "
        f"runpy.run_path({script!r}, run_name='__main__')"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == command.CANNOT_PREPARE
    assert f"has no module {name!r}; install it:" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("os_release", "words"),
    [
        ('NAME="Debian"\nID=debian\n', [f"python{command.VERSION}-venv", "python3-pip"]),
        ("ID=raspbian\nID_LIKE=debian\n", ["apt-get", f"python{command.VERSION}-venv"]),
        ('ID="openwrt"\nID_LIKE="lede openwrt"\n', ["opkg", "python3-venv", "python3-pip"]),
        ("ID=alpine\n", ["apk add py3-pip"]),
        ("ID=rocky\nID_LIKE='rhel centos fedora'\n", ["dnf install python3-pip"]),
        ("", ["apt-get", "opkg", "apk", "dnf"]),
        ("ID=unheard-of\nnonsense\n", ["apt-get", "opkg", "apk", "dnf"]),
    ],
)
def test_the_hint_names_the_packages_of_the_distribution(os_release: str, words: list[str]) -> None:
    hint = command.install_hint(os_release)
    assert [word for word in words if word not in hint] == []


def test_only_the_groups_asked_for_are_required() -> None:
    text = '[dependency-groups]\ndev = ["b", "a"]\nlint = ["c"]\nfuzz = ["a", "d"]\n'
    assert command.requirements(text, ["dev"]) == ["a", "b"]
    assert command.requirements(text, ["dev", "fuzz"]) == ["a", "b", "d"]
    with pytest.raises(command.CannotPrepareError, match="no dependency group 'x'"):
        command.requirements(text, ["dev", "x"])


def test_an_older_interpreter_can_read_the_line_that_turns_it_away() -> None:
    text = SCRIPT.read_text("utf-8")
    tree = ast.parse(text, feature_version=(3, 7))
    guard = next(node for node in tree.body if isinstance(node, ast.If))
    before = tree.body[: tree.body.index(guard)]
    assert ast.unparse(guard.test) == "sys.version_info < (3, 11)"
    assert [ast.unparse(node) for node in before[1:]] == ["import sys"]
