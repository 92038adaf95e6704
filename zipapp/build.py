#!/usr/bin/env python3
"""Build `qinglong-edge.pyz`: the same sources give the same bytes.

Into the archive go the `*.py` and `*.sql` files and `py.typed` under `qinglong_edge/`, sorted by
name, every entry with one fixed time and mode, behind a launcher that is a constant; `schema.sql`
stays out, for it only repeats to readers what the migrations do. Modification times, umask,
working directory and the order of directory entries leave no trace. Another zlib may compress
differently; `--stored` does not depend on it and needs no zlib on the device.
"""

import argparse
import hashlib
import io
import os
import shutil
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "qinglong_edge"
OUTPUT = Path("dist/qinglong-edge.pyz")
SHEBANG = b"#!/usr/bin/env python3\n"
ENTRY_TIME = (1980, 1, 1, 0, 0, 0)  # the oldest that a zip entry can hold
ENTRY_MODE = 0o100644 << 16
UNIX = 3  # ZipInfo would take the building system's number
COMPRESS_LEVEL = 9
UNUSED = "schema.sql"  # for readers, and for the test that compares it with the migrations
# Rooms that no command reaches yet: what is not enabled does not travel. A test holds that nothing
# in the archive imports them, so whoever connects one takes it out of here.
UNREACHED = (
    "actions/evidence_kit.py", "domain/completion.py", "executor/controller.py",
    "executor/run_order.py", "executor/spawner.py", "executor/supervisor_process.py",
    "ports/receipts.py", "receipts/",
)  # fmt: skip
LAUNCHER = b'''\
"""Start qinglong-edge from its archive."""

import sys

if sys.version_info < (3, 11):
    sys.stderr.write("qinglong-edge needs Python >= 3.11, not %d.%d\\n" % sys.version_info[:2])
    sys.exit(2)

try:
    from qinglong_edge.cli.main import run

    run()
except KeyboardInterrupt:
    sys.exit(130)
'''


class BuildError(Exception):
    """Say why no archive was written."""


def members(root: Path) -> list[tuple[str, bytes]]:
    """Return name and content of each file that is shipped, sorted by name."""
    found = [("__main__.py", LAUNCHER)]
    for folder, folders, names in os.walk(root / PACKAGE):
        folders[:] = [name for name in folders if name != "__pycache__" and name[0] != "."]
        for name in names:
            path = Path(folder, name)
            shipped = name == "py.typed" or path.suffix in {".py", ".sql"}
            inside = path.relative_to(root / PACKAGE).as_posix()
            if name[0] == "." or name == UNUSED or not shipped or inside.startswith(UNREACHED):
                continue
            if path.is_symlink():
                raise BuildError(f"{path}: a link is not a source file")
            found.append((path.relative_to(root).as_posix(), path.read_bytes()))
    if f"{PACKAGE}/__init__.py" not in dict(found):
        raise BuildError(f"{root / PACKAGE}: no package here")
    return sorted(found)


def archive(root: Path, *, stored: bool) -> bytes:
    """Return the bytes of the archive made from the package under `root`."""
    buffer = io.BytesIO(SHEBANG)
    buffer.seek(0, os.SEEK_END)
    with zipfile.ZipFile(buffer, "a") as target:
        for name, content in members(root):
            entry = zipfile.ZipInfo(name, ENTRY_TIME)
            entry.create_system = UNIX
            entry.external_attr = ENTRY_MODE
            entry.compress_type = zipfile.ZIP_STORED if stored else zipfile.ZIP_DEFLATED
            target.writestr(entry, content, compresslevel=None if stored else COMPRESS_LEVEL)
    return buffer.getvalue()


def write(path: Path, content: bytes) -> None:
    """Replace `path` in one step; a reader sees the old archive or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    temporary = Path(name)
    try:
        with open(descriptor, "wb") as file:
            file.write(content)
            os.fchmod(file.fileno(), 0o755)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def check(root: Path, *, stored: bool) -> bool:
    """Build once more from a copy with other times, modes and place; compare the files."""
    with tempfile.TemporaryDirectory() as name:
        first, second = Path(name, "first.pyz"), Path(name, "second.pyz")
        write(first, archive(root, stored=stored))
        other = Path(name, "other", "place")
        ignored = shutil.ignore_patterns("__pycache__", ".*")
        shutil.copytree(root / PACKAGE, other / PACKAGE, ignore=ignored)
        for path in sorted(other.rglob("*"), reverse=True):
            path.chmod(0o700)
            os.utime(path, (1_000_000_000, 1_000_000_000))
        write(second, archive(other, stored=stored))
        return first.read_bytes() == second.read_bytes()


def main(argv: list[str]) -> int:
    """Build the archive, or prove that building it is reproducible; return the exit code."""
    parser = argparse.ArgumentParser(description="Build the one-file program, reproducibly.")
    parser.add_argument("--output", type=Path, help=f"where to write it (default {OUTPUT})")
    parser.add_argument("--root", type=Path, default=ROOT, help="the directory of the package")
    parser.add_argument("--stored", action="store_true", help="do not compress")
    parser.add_argument("--check", action="store_true", help="build twice, compare, keep nothing")
    options = parser.parse_args(argv)
    try:
        if options.check:
            same = check(options.root, stored=options.stored)
            print("reproducible" if same else "two builds of the same sources differ")
            return 0 if same else 1
        content = archive(options.root, stored=options.stored)
        output = options.output or options.root / OUTPUT
        write(output, content)
    except (BuildError, OSError) as error:
        print(f"zipapp: {error}", file=sys.stderr)
        return 1
    print(f"{output.name} {len(content)} bytes sha256 {hashlib.sha256(content).hexdigest()}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
