"""What a directory lies on: told from the kernel's list, tried with real links."""

import errno
import os
import stat
from pathlib import Path

import pytest

from qinglong_edge.domain.errors import RefusedError, UnavailableError
from qinglong_edge.storage import filesystem
from qinglong_edge.storage.filesystem import FileSystem, check_links, describe, require_durable

MEMORY = Path("/dev/shm")  # the one place that is memory on every Linux machine


def device(path: Path) -> str:
    number = path.stat().st_dev
    return f"{os.major(number)}:{os.minor(number)}"


def escaped(path: Path) -> str:
    special = {ord(" "): "\\040", ord("\t"): "\\011", ord("\n"): "\\012", ord("\\"): "\\134"}
    return str(path).translate(special)


class Kernel:
    """Write lists of mounts as the kernel would."""

    def __init__(self, root: Path) -> None:
        self.file = root / "mountinfo"
        self.here = device(root)

    def shows(self, path: Path, *lines: str) -> FileSystem:
        self.file.write_text("".join(f"{line}\n" for line in lines))
        return describe(str(path), mountinfo=str(self.file))

    def line(self, point: Path, rest: str, *, device: str | None = None) -> str:
        return f"27 1 {device or self.here} / {escaped(point)} rw,relatime shared:1 - {rest}"


@pytest.fixture
def kernel(tmp_path: Path) -> Kernel:
    return Kernel(tmp_path)


ROOT_LINE = "20 1 259:99 / / rw - ext4 /dev/root rw"


@pytest.mark.parametrize("name", ["plain", "two words", "back\\slash", "line\nbreak", "青龙"])
def test_the_longest_mount_point_of_the_device_is_it(
    tmp_path: Path, kernel: Kernel, name: str
) -> None:
    place = tmp_path / name
    place.mkdir()
    found = kernel.shows(
        place,
        ROOT_LINE,
        kernel.line(place, "f2fs /dev/mmcblk0p7 rw"),
        kernel.line(tmp_path, "ext4 /dev/sda1 rw"),
        kernel.line(tmp_path / (name + "er"), "vfat /dev/sdb1 rw"),
    )
    assert found == FileSystem("f2fs", volatile=False, network=False, source="/dev/mmcblk0p7")


def test_the_device_counts_more_than_the_length_of_the_mount_point(
    tmp_path: Path, kernel: Kernel
) -> None:
    covered = kernel.line(tmp_path, "tmpfs none rw", device="0:999")
    assert kernel.shows(tmp_path, kernel.line(Path("/"), "ext4 /dev/sda1 rw"), covered).type == (
        "ext4"
    )


def test_where_no_device_fits_the_longest_and_latest_mount_point_counts(
    tmp_path: Path, kernel: Kernel
) -> None:
    found = kernel.shows(
        tmp_path,
        ROOT_LINE,
        kernel.line(tmp_path, "ext4 /dev/sda1 rw", device="0:998"),
        kernel.line(tmp_path, "btrfs /dev/sdb1 rw,subvol=/a", device="0:999"),
    )
    assert (found.type, found.source) == ("btrfs", "/dev/sdb1")


def test_a_directory_that_is_not_there_yet_lies_where_its_parent_lies(
    tmp_path: Path, kernel: Kernel
) -> None:
    line = kernel.line(tmp_path, "ubifs ubi0:data rw")
    assert kernel.shows(tmp_path / "a" / "b", ROOT_LINE, line).type == "ubifs"


def test_a_symbolic_link_lies_where_it_points(tmp_path: Path, kernel: Kernel) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    line = kernel.line(tmp_path / "real", "jffs2 /dev/mtdblock5 rw")
    assert kernel.shows(tmp_path / "link", ROOT_LINE, line).type == "jffs2"


@pytest.mark.parametrize(
    ("rest", "volatile", "network"),
    [
        ("tmpfs tmpfs rw", True, False),
        ("ramfs none rw", True, False),
        ("ext4 /dev/zram1 rw", True, False),
        ("ext4 /dev/ram0 rw", True, False),
        ("jffs2 /dev/mtdblock5 rw", False, False),
        ("nfs4 nas:/share rw", False, True),
        ("nfs nas:/share rw", False, True),
        ("cifs //nas/share rw", False, True),
        ("smb3 //nas/share rw", False, True),
        ("9p host rw", False, True),
        ("fuse.sshfs me@nas: rw", False, True),
        ("fuse.glusterfs nas:/v rw", False, True),
        ("fuse.vmhgfs-fuse .host:/ rw", False, True),
        ("ceph mon:/ rw", False, True),
        ("afs none rw", False, True),
        ("fuseblk /dev/sda1 rw", False, False),
    ],
)
def test_memory_and_networks_are_known(
    tmp_path: Path, kernel: Kernel, rest: str, volatile: bool, network: bool
) -> None:
    found = kernel.shows(tmp_path, kernel.line(tmp_path, rest))
    assert (found.volatile, found.network) == (volatile, network)


@pytest.mark.parametrize(("upper", "volatile"), [("tmpfs", True), ("jffs2", False)])
def test_an_overlay_is_as_volatile_as_what_takes_its_writes(
    tmp_path: Path, kernel: Kernel, upper: str, volatile: bool
) -> None:
    place, writes = tmp_path / "root", tmp_path / "upper one"
    place.mkdir()
    writes.mkdir()
    overlay = f"overlay overlayfs rw,lowerdir=/,upperdir={escaped(writes)},workdir=/w"
    found = kernel.shows(place, kernel.line(place, overlay), kernel.line(writes, f"{upper} x rw"))
    assert (found.type, found.volatile) == ("overlay", volatile)


def test_an_overlay_over_what_cannot_be_seen_claims_nothing(tmp_path: Path, kernel: Kernel) -> None:
    overlay = "overlay overlay rw,lowerdir=/l,upperdir=/nowhere/at/all,workdir=/w"
    assert not kernel.shows(tmp_path, kernel.line(tmp_path, overlay)).volatile


@pytest.mark.parametrize("line", ["", "27 1 8:1 / /", "27 1 - ext4", "no words - ext4 a b"])
def test_a_line_of_another_shape_is_passed_over(tmp_path: Path, kernel: Kernel, line: str) -> None:
    assert kernel.shows(tmp_path, line, kernel.line(tmp_path, "ext4 a rw"), line).type == "ext4"


def test_without_a_list_nothing_is_claimed(tmp_path: Path) -> None:
    found = describe(str(tmp_path), mountinfo=str(tmp_path / "none"))
    assert found == FileSystem("", volatile=False, network=False)
    require_durable(found, allow_volatile=False)


def test_this_machine_shows_its_memory_and_its_disk(tmp_path: Path) -> None:
    if not MEMORY.is_dir():
        pytest.skip("there is no /dev/shm here")
    assert describe(str(MEMORY)).volatile
    assert describe(str(tmp_path)).type


@pytest.mark.adr("0004", "7")
def test_memory_is_refused_unless_allowed() -> None:
    memory = FileSystem("tmpfs", volatile=True, network=False)
    with pytest.raises(RefusedError) as refused:
        require_durable(memory, allow_volatile=False)
    assert (refused.value.code, refused.value.details) == ("state_volatile", {"type": "tmpfs"})
    require_durable(memory, allow_volatile=True)


@pytest.mark.adr("0004", "7")
@pytest.mark.parametrize("allowed", [False, True])
def test_a_network_is_always_refused(allowed: bool) -> None:
    network = FileSystem("nfs4", volatile=False, network=True)
    with pytest.raises(RefusedError) as refused:
        require_durable(network, allow_volatile=allowed)
    assert refused.value.code == "state_on_network"


@pytest.mark.parametrize("mask", [0o022, 0o777])
def test_a_good_directory_passes_and_nothing_stays(tmp_path: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        check_links(str(tmp_path), os.urandom)
    finally:
        os.umask(before)
    assert list(tmp_path.iterdir()) == []


def refuse(*_names: object, **_where: object) -> None:
    raise OSError(errno.EPERM, "no links here")


def pretend(*_names: object, **_where: object) -> None:
    """Answer like a file system that replaces names."""


def copied(first: str, linked: str, *, src_dir_fd: int, dst_dir_fd: int) -> None:
    os.close(os.open(linked, os.O_WRONLY | os.O_CREAT, dir_fd=dst_dir_fd))


def full(*_names: object, **_where: object) -> None:
    raise OSError(errno.ENOSPC, "no space")


REAL_LINK = os.link


def replacing(first: str, linked: str, *, src_dir_fd: int, dst_dir_fd: int) -> None:
    if not linked.endswith("second"):
        REAL_LINK(first, linked, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)


@pytest.mark.adr("0004", "7")
@pytest.mark.parametrize("link", [refuse, copied, replacing])
def test_a_directory_without_true_links_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, link: object
) -> None:
    monkeypatch.setattr(os, "link", link)
    with pytest.raises(RefusedError) as refused:
        check_links(str(tmp_path), os.urandom)
    assert refused.value.code == "filesystem_without_links"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("fchmod", [refuse, pretend])
def test_a_directory_without_private_modes_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fchmod: object
) -> None:
    monkeypatch.setattr(os, "fchmod", fchmod)
    before = os.umask(0o200)  # what is made is not 0600 unless fchmod makes it so
    try:
        with pytest.raises(RefusedError) as refused:
            check_links(str(tmp_path), os.urandom)
    finally:
        os.umask(before)
    assert refused.value.code == "filesystem_without_modes"
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_not_mistaken_for_a_missing_ability(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "link", full)
    with pytest.raises(UnavailableError) as failed:
        check_links(str(tmp_path), os.urandom)
    assert failed.value.code == "disk_full"
    assert list(tmp_path.iterdir()) == []


def test_a_missing_directory_is_unavailable(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError) as failed:
        check_links(str(tmp_path / "none"), os.urandom)
    assert failed.value.code == "storage_error"


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (errno.ENOSPC, "disk_full"),
        (errno.EDQUOT, "disk_full"),
        (errno.EROFS, "read_only"),
        (errno.ENOMEM, "out_of_memory"),
        (errno.EIO, "storage_error"),
        (None, "storage_error"),
    ],
)
def test_the_words_of_the_system_are_translated(number: int | None, code: str) -> None:
    error = OSError() if number is None else OSError(number, "secret words")
    found = filesystem.unavailable(error)
    assert (found.code, "secret" in found.message) == (code, False)


def test_probe_files_are_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    modes: list[int] = []

    def watched(first: str, linked: str, *, src_dir_fd: int, dst_dir_fd: int) -> None:
        modes.extend(stat.S_IMODE(each.stat().st_mode) for each in tmp_path.iterdir())
        REAL_LINK(first, linked, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)

    monkeypatch.setattr(os, "link", watched)
    check_links(str(tmp_path), os.urandom)
    assert set(modes) == {0o600}
