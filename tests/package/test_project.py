"""What the project says about itself in pyproject.toml, the Makefile and the README is true."""

import re
import shutil
import subprocess
import sys
import tomllib
from typing import Any

import pytest

import qinglong_edge
from tests.package.source_tree import ROOT

PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
MAKEFILE = (ROOT / "Makefile").read_text("utf-8")
TARGETS = [
    "help", "setup", "demo", "fmt", "lint", "type", "test", "contract", "stateful", "crash",
    "stress",
    "served", "cycled",
    "cover", "mutants", "bench", "zipapp", "verify", "check", "clean",
]  # fmt: skip


def test_nothing_is_needed_at_run_time() -> None:
    assert PROJECT["project"]["dependencies"] == []
    assert "optional-dependencies" not in PROJECT["project"]
    assert PROJECT["project"]["requires-python"] == ">=3.11"


def test_development_groups_have_lower_bounds_only() -> None:
    groups = PROJECT["dependency-groups"]
    named = {group: [line.partition(">=")[0] for line in lines] for group, lines in groups.items()}
    assert named == {
        "dev": ["pytest", "pytest-benchmark"],
        "lint": ["ruff", "mypy"],
        "fuzz": ["hypothesis"],
    }
    lines = [line for group in groups.values() for line in group]
    assert [line for line in lines if not re.fullmatch(r"[a-z-]+>=\d+(\.\d+)*", line)] == []


def test_the_version_has_one_home() -> None:
    assert PROJECT["project"]["dynamic"] == ["version"]
    assert PROJECT["tool"]["setuptools"]["dynamic"] == {
        "version": {"attr": "qinglong_edge.__version__"}
    }
    assert re.fullmatch(r"\d+\.\d+\.\d+", qinglong_edge.__version__)


@pytest.mark.parametrize("start", [["-m", "qinglong_edge"], ["-c", "SCRIPT"]])
def test_module_and_script_entry_print_the_version(start: list[str]) -> None:
    module, _, function = PROJECT["project"]["scripts"]["qinglong-edge"].partition(":")
    script = f"import sys; from {module} import {function}; sys.exit({function}())"
    command = [sys.executable, *(script if word == "SCRIPT" else word for word in start)]
    done = subprocess.run(
        [*command, "--version"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert qinglong_edge.__version__ in done.stdout.split()


def test_every_data_file_of_the_package_is_in_the_wheel() -> None:
    patterns = PROJECT["tool"]["setuptools"]["package-data"]["*"]
    package = ROOT / "qinglong_edge"
    shipped = {path for pattern in patterns for path in package.rglob(pattern.removeprefix("**/"))}
    there = {
        path
        for path in package.rglob("*")
        if path.is_file() and path.suffix not in {".py", ".pyc"} and "/." not in str(path)
    }
    assert package / "py.typed" in there
    assert there - shipped == set()
    kept_out = PROJECT["tool"]["setuptools"]["exclude-package-data"]["*"]
    assert {path for pattern in kept_out for path in package.glob(pattern)} == {
        package / "storage" / "sqlite" / "sql" / "schema.sql"
    }


def test_every_folder_of_sources_is_a_package() -> None:
    folders = {path.parent for path in (ROOT / "qinglong_edge").rglob("*.py")}
    assert [folder for folder in sorted(folders) if not (folder / "__init__.py").is_file()] == []


def test_the_folder_zipapp_hides_no_module_of_the_library() -> None:
    assert not (ROOT / "zipapp" / "__init__.py").exists()


def test_every_target_is_phony_and_has_a_recipe() -> None:
    phony = re.findall(r"^\.PHONY: (.*)$", MAKEFILE, re.MULTILINE)
    assert " ".join(phony).split() == TARGETS
    made = re.findall(r"^([a-z]+):.*## \S.*\n\t\S", MAKEFILE, re.MULTILINE)
    assert made == TARGETS


@pytest.mark.skipif(not shutil.which("make"), reason="make is not installed")
@pytest.mark.parametrize("arguments", [[], ["help"]])
def test_help_is_the_default_and_lists_every_target(arguments: list[str]) -> None:
    command = ["make", "--no-print-directory", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    listed = [line.split(maxsplit=1) for line in done.stdout.splitlines()]
    assert [name for name, _ in listed] == TARGETS


def test_every_script_that_a_target_calls_exists() -> None:
    scripts = set(re.findall(r"(?:tools|zipapp)/\w+\.py|\.ci/run", MAKEFILE))
    assert len(scripts) > 1
    assert [script for script in sorted(scripts) if not (ROOT / script).is_file()] == []


@pytest.mark.adr("0036", "v.1")
def test_the_gates_run_on_every_interpreter_that_is_promised() -> None:
    script = (ROOT / ".ci" / "run").read_text("utf-8")
    (names,) = re.findall(r'^readonly VERSIONS="(.+)"$', script, re.MULTILINE)
    promised = PROJECT["project"]["requires-python"].removeprefix(">=")
    assert names.split()[0] == promised
    assert {"3.11", "3.12", "3.13"} <= set(names.split())
    assert 'stage 420 "tests ${found[0]}" "$first" tools/test.py -q\n' in script
    loop = r'^for version in "\$\{found\[@\]:1\}"; do\n(.+?)\ndone$'
    loops = re.findall(loop, script, re.MULTILINE | re.DOTALL)
    assert any('"${python[$version]}" tools/test.py' in stage for stage in loops)


def test_the_command_line_is_judged_with_an_owner_as_far_as_it_can_be() -> None:
    """These bring, break or replace an owner or its state; whoever adds a file decides."""
    alone = {"imports", "init", "serve", "broken_files"}
    script = (ROOT / ".ci" / "run").read_text("utf-8")
    (by_script,) = re.findall(r"^for suite in ([a-z_ ]+); do$", script, re.MULTILINE)
    (by_make,) = re.findall(r"^OWNED = \$\(foreach suite,(.+?),", MAKEFILE, re.MULTILINE)
    there = {path.stem.removeprefix("test_") for path in (ROOT / "tests" / "cli").glob("test_*.py")}
    assert by_script == by_make
    assert set(by_make.split()) == there - alone
    assert script.count('"${owned[@]}" &\n') == 2


def test_the_readme_begins_with_the_demo_and_the_tests() -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    fenced = re.findall(r"^```\w*\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    lines = [
        line.removeprefix("$ ").partition("  #")[0].strip() for line in "".join(fenced).split("\n")
    ]
    commands = [line for line in lines if line.startswith("python3 ")]
    assert commands[:2] == ["python3 -m qinglong_edge demo", "python3 tools/test.py"]
