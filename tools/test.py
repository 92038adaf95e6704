#!/usr/bin/env python3
"""Run the tests with nothing prepared but Python 3.11 or newer.

    python3 tools/test.py [--group NAME]... [--module NAME | --prepare] [pytest arguments]

Makes one virtual environment an interpreter version (`.venv/3.12`), installs into it what the
dependency groups of pyproject.toml ask for, and becomes pytest there: its exit code is ours. What
was installed once is not looked for again, so a second run needs no network. A creation or an
installation that was interrupted starts over; two runs at once take turns.

`--group` adds a group to `dev`; `--module` runs another module than pytest, such as mypy;
`--prepare` stops after the installation. Exit 2: the environment could not be made.
"""

import sys

if sys.version_info < (3, 11):  # noqa: UP036  # this file is what tells people so
    sys.exit("tools/test.py needs Python 3.11 or newer, this is " + sys.version.split()[0])

import argparse
import fcntl
import importlib.util
import os
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VERSION = f"{sys.version_info[0]}.{sys.version_info[1]}"
CANNOT_PREPARE = 2

# What brings `venv`, `ensurepip` and pip, by the ID words of /etc/os-release.
PACKAGES = {
    "debian": f"apt-get install python{VERSION}-venv python3-venv python3-pip",
    "openwrt": "opkg install python3-venv python3-pip  (or: apk add python3-venv python3-pip)",
    "alpine": "apk add py3-pip",
    "fedora": "dnf install python3-pip",
}
PACKAGES["ubuntu"] = PACKAGES["debian"]


class CannotPrepareError(Exception):
    """Say in one message what is missing and what to do."""


def install_hint(os_release: str) -> str:
    """Return the command that installs what is missing, or one a distribution where unknown."""
    fields = dict(line.split("=", 1) for line in os_release.splitlines() if "=" in line)
    for key in ("ID", "ID_LIKE"):
        for word in fields.get(key, "").strip("\"'").split():
            if word in PACKAGES:
                return f"install it: {PACKAGES[word]}"
    return "\n".join(["install it:", *(f"  {name}: {line}" for name, line in PACKAGES.items())])


def requirements(pyproject: str, groups: list[str]) -> list[str]:
    """Return the sorted requirements of the named groups."""
    table = tomllib.loads(pyproject).get("dependency-groups", {})
    unknown = [group for group in groups if group not in table]
    if unknown:
        raise CannotPrepareError(
            f"no dependency group {unknown[0]!r}; there are {', '.join(table)}"
        )
    return sorted({requirement for group in groups for requirement in table[group]})


@contextmanager
def turn(path: Path) -> Iterator[None]:
    """Hold the lock file while the environment is made; it is never removed, so no two hold it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


class Environment:
    """Keep one virtual environment and the list of what was installed into it."""

    def __init__(self, home: Path) -> None:
        """Name the place; nothing is made yet."""
        self.home = home
        self.python = home / "bin" / "python"
        self._stamp = home / "installed.txt"

    def prepare(self, wanted: list[str]) -> None:
        """Make the environment and install what is not yet there."""
        with turn(self.home.with_name(self.home.name + ".lock")):
            if not self._works():
                self._create()
            installed = self._stamp.read_text().splitlines()
            if set(wanted) <= set(installed):
                return
            union = sorted({*installed, *wanted})
            self._install(union)
            self._write_stamp(union)

    def _works(self) -> bool:
        """Say whether creation was finished and the interpreter behind it still exists."""
        if not self._stamp.is_file():
            return False
        question = "import sys; print('%d.%d' % sys.version_info[:2])"
        try:
            answer = subprocess.run(
                [self.python, "-I", "-c", question], capture_output=True, text=True, check=True
            )
        except (OSError, subprocess.CalledProcessError):
            return False
        return answer.stdout.strip() == VERSION

    def _create(self) -> None:
        """Make an empty environment; the stamp comes last and vouches for the rest."""
        shutil.rmtree(self.home, ignore_errors=True)
        missing = [name for name in ("venv", "ensurepip") if not importlib.util.find_spec(name)]
        if missing:
            try:
                os_release = Path("/etc/os-release").read_text()
            except OSError:
                os_release = ""
            raise CannotPrepareError(
                f"{sys.executable} has no module {missing[0]!r}; {install_hint(os_release)}"
            )
        print(f"making {self.home}", file=sys.stderr)
        made = subprocess.run(
            [sys.executable, "-m", "venv", self.home], capture_output=True, text=True, check=False
        )
        if made.returncode != 0:
            raise CannotPrepareError((made.stdout + made.stderr).strip())
        self._write_stamp([])

    def _install(self, wanted: list[str]) -> None:
        print(f"installing {', '.join(wanted)}", file=sys.stderr)
        pip = [str(self.python), "-m", "pip", "--disable-pip-version-check"]
        command = [*pip, "install", "--quiet", *wanted]
        if subprocess.run(command, stdout=sys.stderr, check=False).returncode != 0:
            raise CannotPrepareError("pip could not install them (its words stand above)")

    def _write_stamp(self, installed: list[str]) -> None:
        temporary = self._stamp.with_suffix(".new")
        temporary.write_text("".join(f"{line}\n" for line in installed))
        temporary.replace(self._stamp)


def main(argv: list[str]) -> int:
    """Prepare the environment, then replace this process by the module asked for."""
    parser = argparse.ArgumentParser(
        description="Run pytest, or another module, in a virtual environment made on demand.",
        epilog="The rest goes to the module; put `--` before what looks like an option of ours.",
        allow_abbrev=False,
    )
    parser.add_argument("--group", action="append", default=[], help="a group besides dev")
    parser.add_argument("--module", default="pytest", help="run this module instead of pytest")
    parser.add_argument("--prepare", action="store_true", help="install, run nothing")
    options, rest = parser.parse_known_args(argv)
    environment = Environment(ROOT / ".venv" / VERSION)
    try:
        pyproject = (ROOT / "pyproject.toml").read_text()
        environment.prepare(requirements(pyproject, ["dev", *options.group]))
    except (CannotPrepareError, OSError) as error:
        print(f"tools/test.py: {error}", file=sys.stderr)
        return CANNOT_PREPARE
    if not options.prepare:
        arguments = rest[1:] if rest[:1] == ["--"] else rest
        python = str(environment.python)
        os.chdir(ROOT)
        os.execv(python, [python, "-m", options.module, *arguments])
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
