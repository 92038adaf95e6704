"""Where a socket lies: long paths, modes, stale and foreign names."""

import os
import socket
import stat
from pathlib import Path

import pytest

from qinglong_edge.control import address
from qinglong_edge.control.address import Listening
from qinglong_edge.domain.errors import QinglongError, RefusedError, UnavailableError, UsageError
from tests.unit.control.driving import NOBODY


def listen(path: Path | str, *, group: int | None = None, replace: bool = False) -> Listening:
    return address.listen(str(path), state_dir="/nowhere", group=group, replace=replace)


def end(listening: Listening) -> None:
    listening.remove()
    listening.listener.close()


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def fails(path: Path | str, *, group: int | None = None, replace: bool = False) -> str:
    with pytest.raises(QinglongError) as caught:
        listen(path, group=group, replace=replace)
    return caught.value.code


def reaches(path: Path) -> bool:
    """Tell whether a byte arrives."""
    with address.connect(str(path)) as sock:
        return sock.getpeername() is not None


def long_directory(tmp_path: Path, size: int) -> Path:
    path = tmp_path
    while len(str(path)) < size:
        path /= "d" * min(200, max(1, size - len(str(path)) - 1))
    path.mkdir(parents=True)
    return path


@pytest.mark.parametrize("size", [0, 107, 108, 300, 2_000])
@pytest.mark.parametrize("name", ["s", "n" * 85, "n" * 95, "n" * 255, "叶 \n.sock"])
def test_the_length_of_a_path_does_not_matter(tmp_path: Path, size: int, name: str) -> None:
    path = long_directory(tmp_path, size) / name if size else tmp_path / name
    listening = listen(path)
    assert stat.S_ISSOCK(path.lstat().st_mode)
    assert mode(path) == 0o600
    assert reaches(path)
    listening.listener.accept()[0].close()
    assert os.listdir(path.parent) == [name]
    end(listening)
    assert os.listdir(path.parent) == []


def test_a_relative_path_is_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    listening = listen("s")
    assert reaches(Path("s"))
    end(listening)


@pytest.mark.parametrize("umask", [0, 0o777])
def test_the_mode_does_not_depend_on_the_umask(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        listening = listen(tmp_path / "s")
    finally:
        os.umask(before)
    assert mode(tmp_path / "s") == 0o600
    end(listening)


@pytest.mark.parametrize(
    "path", ["", "/", "/x/", "/x/.", "/x/..", "a\0b", "\0abstract", "/" * 5000]
)
def test_what_is_no_path_of_a_file_is_refused(path: str) -> None:
    assert fails(path) == "invalid_socket"
    with pytest.raises(UsageError):
        address.connect(path)


def test_a_name_that_is_taken_is_never_replaced_unasked(tmp_path: Path) -> None:
    first = listen(tmp_path / "s")
    assert fails(tmp_path / "s") == "socket_exists"
    long = listen(tmp_path / ("n" * 200))
    assert fails(tmp_path / ("n" * 200)) == "socket_exists"
    assert sorted(os.listdir(tmp_path)) == ["n" * 200, "s"]
    assert reaches(tmp_path / "s")
    end(first)
    end(long)


@pytest.mark.parametrize("name", ["s", "n" * 200])
def test_a_stale_socket_is_replaced_on_demand(tmp_path: Path, name: str) -> None:
    dead = listen(tmp_path / name)
    (tmp_path / name).rename(tmp_path / "aside")
    end(dead)
    (tmp_path / "aside").rename(tmp_path / name)  # as a killed owner leaves it
    assert fails(tmp_path / name) == "socket_exists"
    second = listen(tmp_path / name, replace=True)
    assert reaches(tmp_path / name)
    end(second)
    third = listen(tmp_path / name, replace=True)  # nothing there is fine as well
    end(third)


def test_a_socket_on_which_somebody_listens_is_not_replaced(tmp_path: Path) -> None:
    first = listen(tmp_path / "s")
    assert fails(tmp_path / "s", replace=True) == "socket_in_use"
    assert reaches(tmp_path / "s")
    end(first)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
        other.bind(str(tmp_path / "s"))
        assert fails(tmp_path / "s", replace=True) == "socket_in_use"
    assert (tmp_path / "s").exists()


@pytest.mark.parametrize("kind", ["file", "directory", "link", "dangling", "pipe"])
def test_nothing_but_a_socket_is_replaced(tmp_path: Path, kind: str) -> None:
    path, target = tmp_path / "s", tmp_path / "t"
    other = listen(target)
    if kind == "file":
        path.write_text("x")
    elif kind == "directory":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to(target if kind == "link" else tmp_path / "missing")
    before = path.lstat()
    assert fails(path, replace=True) == "not_a_socket"
    assert fails(path) == "socket_exists"
    assert os.path.samestat(path.lstat(), before)
    assert not (tmp_path / "missing").exists()
    with pytest.raises(RefusedError) as caught:
        address.connect(str(path))
    assert caught.value.code == "not_a_socket"
    end(other)


def test_only_our_own_name_is_taken_away(tmp_path: Path) -> None:
    first = listen(tmp_path / "s")
    (tmp_path / "s").unlink()
    second = listen(tmp_path / "s")
    end(first)
    assert reaches(tmp_path / "s")
    second.remove()
    second.remove()
    assert os.listdir(tmp_path) == []
    second.listener.close()


def test_a_place_that_moved_is_still_cleaned(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    listening = listen(tmp_path / "a" / "s")
    (tmp_path / "a").rename(tmp_path / "b")
    end(listening)
    assert os.listdir(tmp_path / "b") == []


def test_a_missing_place_is_said_to(tmp_path: Path) -> None:
    assert fails(tmp_path / "a" / "s") == "socket_place_missing"
    (tmp_path / "f").write_text("")
    assert fails(tmp_path / "f" / "s") == "socket_place_missing"
    assert fails(tmp_path / "a" / "b" / "s", group=os.getgid()) == "socket_place_missing"
    assert os.listdir(tmp_path) == ["f"]
    with pytest.raises(UnavailableError):
        listen(tmp_path / ("n" * 256))


def test_the_directory_of_a_group_is_made(tmp_path: Path) -> None:
    group = NOBODY if os.getuid() == 0 else os.getgid()
    listening = listen(tmp_path / "made" / "s", group=group)
    assert mode(tmp_path / "made") == 0o750
    assert mode(tmp_path / "made" / "s") == 0o660
    assert {(tmp_path / name).stat().st_gid for name in ("made", "made/s")} == {group}
    end(listening)
    (tmp_path / "made").chmod(0o711)
    again = listen(tmp_path / "made" / "s", group=group)
    assert mode(tmp_path / "made") == 0o711  # what is there already is somebody's decision
    end(again)


def test_a_socket_for_a_group_lies_outside_the_state(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "link").symlink_to("state")
    for path in ("state/s", "state/a/s", "link/s", "x/../state/s"):
        with pytest.raises(UsageError) as caught:
            address.listen(
                str(tmp_path / path), state_dir=str(tmp_path / "state"), group=os.getgid()
            )
        assert caught.value.code == "socket_in_state"
    assert os.listdir(tmp_path / "state") == []
    beside = address.listen(
        str(tmp_path / "state-run" / "s"), state_dir=str(tmp_path / "state"), group=os.getgid()
    )
    end(beside)


@pytest.mark.skipif(os.getuid() == 0, reason="root may give anything to any group")
def test_a_group_that_is_not_ours_is_refused(tmp_path: Path) -> None:
    assert fails(tmp_path / "made" / "s", group=0) == "socket_not_allowed"
    assert os.listdir(tmp_path) == []


def test_nobody_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        address.connect(str(tmp_path / "s"))
    listening = listen(tmp_path / "s")
    listening.listener.close()
    with pytest.raises(ConnectionRefusedError):
        address.connect(str(tmp_path / "s"))
    listening.remove()
