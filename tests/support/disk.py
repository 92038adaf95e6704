"""A small file system of its own, mounted where only those see it who enter its namespace."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from tests.support.crash import PATIENCE_S

TOOLS = ("unshare", "nsenter", "mount", "mke2fs", "dd")
MISSING = [tool for tool in TOOLS if shutil.which(tool) is None]
KIB = 6_144  # the log may grow to 1 MiB; a fill takes the rest

# 1 KiB blocks: no commit fits into what the last block of the log has left.
_MOUNT = """
exec 3>&1 >/dev/null
mke2fs -q -F -t ext4 -b 1024 -m 0 -N 128 "$2" "$3"
mount -o loop "$2" "$1"
rmdir "$1/lost+found"
echo mounted >&3
exec cat
"""
_ENTER = 'cd "$0" && exec "$@"'


class Disk:
    """Be a small file system that only those see who enter its mount namespace."""

    def __init__(self, root: Path) -> None:
        self.point = root / "disk"
        self.point.mkdir()
        image = root / "image"
        self._holder = subprocess.Popen(
            ["unshare", "--mount", "--propagation", "private", "/bin/sh", "-ec", _MOUNT, "sh",
             self.point, image, str(KIB)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        self.fault = "" if self._first_line() == b"mounted\n" else self._end()
        self.inside = Path(f"/proc/{self._holder.pid}/root") / self.point.relative_to("/")
        self.enter = (
            "nsenter",
            f"--mount=/proc/{self._holder.pid}/ns/mnt",
            "/bin/sh",
            "-c",
            _ENTER,
        )

    def _first_line(self) -> bytes:
        assert self._holder.stdout is not None
        return self._holder.stdout.readline()

    def _end(self) -> str:
        _, said = self._holder.communicate(timeout=PATIENCE_S)
        return said.decode().strip() or "no word"

    def close(self) -> None:
        """End the namespace; with it go the mount and its loop device."""
        if self._holder.poll() is None:
            self._end()

    def remount(self, how: str) -> None:
        words = ["mount", "-o", f"remount,{how}", str(self.point)]
        subprocess.run([*self.enter, "/", *words], check=True, stdin=subprocess.DEVNULL)

    @property
    def fill(self) -> str:
        """Return the command that takes every free block, to be run by a child."""
        return (
            f'dd if=/dev/zero of="{self.point}/fill" bs=1k 2>/dev/null; sync "{self.point}"; true'
        )

    def free(self) -> None:
        (self.inside / "fill").unlink()


@contextmanager
def disk(root: Path) -> Iterator[Disk]:
    with closing(Disk(root)) as made:
        if made.fault:
            pytest.skip(f"no loop mount here: {made.fault}")
        yield made


needs_disk = pytest.mark.skipif(
    os.geteuid() != 0 or bool(MISSING), reason=f"needs root and {', '.join(MISSING or TOOLS)}"
)
