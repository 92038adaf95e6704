"""The one-file program: the same bytes from the same sources, sources only, and it runs."""

import ast
import os
import shutil
import stat
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import qinglong_edge
from tests.package.source_tree import PACKAGE, ROOT

BUILD = ROOT / "zipapp" / "build.py"
BYTES_MAX = 300 * 1024


def build(*arguments: str | Path, cwd: Path = ROOT, umask: int = 0o022) -> str:
    done = subprocess.run(
        [sys.executable, "-I", BUILD, *arguments],
        cwd=cwd,
        umask=umask,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("zipapp") / "qinglong-edge.pyz"
    printed = build("--output", output)
    assert printed.startswith(f"{output.name} {output.stat().st_size} bytes sha256 ")
    return output


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copy the package to another place, as an unpacked release would lie there."""
    root = tmp_path_factory.mktemp("elsewhere")
    ignored = shutil.ignore_patterns("__pycache__", ".*")
    shutil.copytree(ROOT / PACKAGE, root / PACKAGE, ignore=ignored)
    return root


def test_place_times_modes_umask_and_directory_leave_no_trace(
    archive: Path, copy: Path, tmp_path: Path
) -> None:
    for path in copy.rglob("*"):
        os.utime(path, (1_234_567_890, 1_234_567_890))
        path.chmod(0o700)
    second = tmp_path / "second.pyz"
    build("--root", copy, "--output", second, cwd=tmp_path, umask=0o077)
    assert second.read_bytes() == archive.read_bytes()
    assert stat.S_IMODE(second.stat().st_mode) == 0o755


def test_one_changed_byte_changes_the_archive(archive: Path, copy: Path, tmp_path: Path) -> None:
    changed = tmp_path / "tree"
    shutil.copytree(copy, changed)
    with (changed / PACKAGE / "__init__.py").open("a") as file:
        file.write("\n")
    second = tmp_path / "second.pyz"
    build("--root", changed, "--output", second)
    assert second.read_bytes() != archive.read_bytes()


def test_only_sources_are_inside(copy: Path, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    shutil.copytree(copy, tree)
    for stray in ("notes.txt", ".hidden.py", "old.py~", "__pycache__/x.py", "a.pyc"):
        path = tree / PACKAGE / stray
        path.parent.mkdir(exist_ok=True)
        path.write_text("x = 1\n")
    output = tmp_path / "x.pyz"
    build("--root", tree, "--output", output)
    wanted = [
        path.relative_to(copy).as_posix()
        for path in (copy / PACKAGE).rglob("*")
        if path.name != "schema.sql" and (path.suffix in {".py", ".sql"} or path.name == "py.typed")
        if not path.relative_to(copy / PACKAGE).as_posix().startswith(unreached())
    ]
    with zipfile.ZipFile(output) as found:
        assert found.namelist() == sorted(["__main__.py", *wanted])
        assert {entry.date_time for entry in found.infolist()} == {(1980, 1, 1, 0, 0, 0)}


def unreached() -> tuple[str, ...]:
    """Read from the build script which rooms stay at home."""
    for node in ast.parse(BUILD.read_text("utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "UNREACHED":
            names: tuple[str, ...] = ast.literal_eval(node.value)
            return names
    raise AssertionError


def test_nothing_in_the_archive_imports_what_stays_at_home(archive: Path) -> None:
    """Whoever connects such a room takes it off the list; and each name on it exists."""
    names = unreached()
    assert [name for name in names if not (ROOT / PACKAGE / name).exists()] == []
    rooms = {name.removesuffix(".py").strip("/").replace("/", ".") for name in names}
    far = tuple(f"{PACKAGE}.{room}." for room in rooms)
    imported: set[str] = set()
    with zipfile.ZipFile(archive) as found:
        for name in found.namelist():
            if name.endswith(".py"):
                for node in ast.walk(ast.parse(found.read(name))):
                    if isinstance(node, ast.ImportFrom) and node.module:
                        imported |= {f"{node.module}.{each.name}" for each in node.names}
    assert len(imported) > 100
    assert [name for name in sorted(imported) if f"{name}.".startswith(far)] == []


def test_a_stored_archive_needs_no_zlib(tmp_path: Path) -> None:
    output = tmp_path / "stored.pyz"
    build("--stored", "--output", output)
    with zipfile.ZipFile(output) as found:
        assert {entry.compress_type for entry in found.infolist()} == {zipfile.ZIP_STORED}


def test_the_check_passes_on_these_sources() -> None:
    assert build("--check") == "reproducible\n"


def test_a_failed_build_leaves_nothing_behind(tmp_path: Path) -> None:
    failed = subprocess.run(
        [sys.executable, BUILD, "--root", tmp_path, "--output", tmp_path / "x.pyz"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert failed.returncode == 1
    assert failed.stderr.startswith("zipapp: ")
    assert list(tmp_path.iterdir()) == []


def test_the_archive_is_small(archive: Path) -> None:
    assert archive.stat().st_size <= BYTES_MAX


def test_the_archive_runs_isolated_and_without_site(archive: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-I", "-S", archive, "--version"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert qinglong_edge.__version__ in done.stdout.split()


def test_the_archive_runs_by_its_own_name(archive: Path) -> None:
    first, _ = archive.read_bytes().split(b"\n", 1)
    assert first == b"#!/usr/bin/env python3"
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        [archive, "--version"], env={"PATH": path}, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
