import json
import os
import stat
from pathlib import Path

import pytest

from qinglong_edge.cli.request import Options
from qinglong_edge.cli.session_file import (
    StoredSession,
    load,
    read_session,
    read_token_file,
    remove_session,
    session_path,
    state_path,
    write_session,
)
from qinglong_edge.domain.errors import QinglongError, UnavailableError, UsageError
from tests.support.entropy import CounterEntropy

SESSION = StoredSession("user:ana", "t" * 43, 1_800_000_000_000)
EXACT = {
    "schema_version": 1,
    "subject": "user:ana",
    "session_token": "t" * 43,
    "expires_at_ms": 1_800_000_000_000,
}


def write(path: Path, session: StoredSession = SESSION) -> None:
    write_session(str(path), session, entropy=CounterEntropy())


def code_of(path: Path) -> str:
    with pytest.raises(UsageError) as raised:
        read_session(str(path))
    return raised.value.code


def test_what_was_written_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "new" / "directory" / "session"
    write(path)
    assert load(str(path)) == SESSION
    assert read_session(str(path)) == "t" * 43
    assert json.loads(path.read_text()) == EXACT
    write(path, SESSION._replace(subject="user:ben"))
    assert load(str(path)) == SESSION._replace(subject="user:ben")
    assert os.listdir(path.parent) == ["session"]


def test_the_file_is_private_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        write(tmp_path / "made" / "session")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "made" / "session").stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "made").stat().st_mode) == 0o700


def test_a_missing_file_is_no_session(tmp_path: Path) -> None:
    assert read_session(str(tmp_path / "none")) is None
    (tmp_path / "file").touch()
    assert read_session(str(tmp_path / "file" / "session")) is None
    remove_session(str(tmp_path / "none"))


@pytest.mark.parametrize("mode", [0o604, 0o640, 0o620, 0o601, 0o777])
def test_a_file_that_others_may_touch_is_insecure(tmp_path: Path, mode: int) -> None:
    write(tmp_path / "session")
    (tmp_path / "session").chmod(mode)
    assert code_of(tmp_path / "session") == "session_file_insecure"


def test_a_link_a_pipe_and_a_directory_are_insecure(tmp_path: Path) -> None:
    write(tmp_path / "session")
    (tmp_path / "link").symlink_to("session")
    (tmp_path / "dangling").symlink_to("nothing")
    os.mkfifo(tmp_path / "pipe", 0o600)
    (tmp_path / "directory").mkdir(mode=0o700)
    for name in ("link", "dangling", "pipe", "directory"):
        assert code_of(tmp_path / name) == "session_file_insecure"
        with pytest.raises(UsageError):
            write(tmp_path / name)
    assert (tmp_path / "link").is_symlink()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_file_of_somebody_else_is_insecure(tmp_path: Path) -> None:
    write(tmp_path / "session")
    os.chown(tmp_path / "session", 65_534, 65_534)
    assert code_of(tmp_path / "session") == "session_file_insecure"
    os.chown(tmp_path, 65_534, 65_534)  # the state of that user: root acts as its owner
    assert read_session(str(tmp_path / "session")) == SESSION.session_token


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b"\xff",
        b"x" * 5_000,
        *(
            json.dumps({**EXACT, **change}).encode()
            for change in (
                {"schema_version": 2},
                {"schema_version": True},
                {"session_token": None},
                {"expires_at_ms": "soon"},
                {"expires_at_ms": True},
                {"subject": 1},
                {"state_id": 1},
                {"more": 1},
            )
        ),
    ],
)
def test_another_content_is_no_session(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "session"
    path.touch(0o600)
    path.write_bytes(content)
    assert code_of(path) == "session_file_malformed"


def test_a_directory_that_cannot_be_written_keeps_the_file(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UnavailableError) as raised:
        write(tmp_path / "file" / "session")
    assert raised.value.code == "session_file_not_written"
    with pytest.raises(QinglongError):
        write(Path("a\0b"))


def test_a_removed_session_is_gone(tmp_path: Path) -> None:
    write(tmp_path / "session")
    remove_session(str(tmp_path / "session"))
    remove_session(str(tmp_path / "session"))
    assert os.listdir(tmp_path) == []


def test_a_file_that_is_no_session_is_not_removed(tmp_path: Path) -> None:
    path = tmp_path / "notes"
    path.touch(0o600)
    with pytest.raises(UsageError):
        remove_session(str(path))
    assert path.exists()


def test_the_given_state_and_session_come_first(tmp_path: Path) -> None:
    options = Options(state="s", session="f")
    assert state_path(options, {}) == "s"
    assert session_path(options, {}, str(tmp_path)) == "f"


def test_the_owner_of_a_state_keeps_the_session_in_it(tmp_path: Path) -> None:
    assert session_path(Options(), {}, str(tmp_path)) == str(tmp_path / "session")


def test_without_a_state_the_session_lies_in_the_home(tmp_path: Path) -> None:
    missing = str(tmp_path / "missing")
    assert (
        session_path(Options(), {"HOME": "/h"}, missing) == "/h/.local/state/qinglong-edge/session"
    )
    environ = {"HOME": "/h", "XDG_STATE_HOME": "/x"}
    assert session_path(Options(), environ, missing) == "/x/qinglong-edge/session"
    environ["XDG_STATE_HOME"] = "relative"
    assert session_path(Options(), environ, missing) == "/h/.local/state/qinglong-edge/session"
    assert session_path(Options(), {}, missing).endswith("/.local/state/qinglong-edge/session")


def test_the_default_state_is_the_users_or_the_systems() -> None:
    found = state_path(Options(), {"HOME": "/h"})
    system = {"/var/lib/qinglong-edge", "/etc/qinglong-edge"}
    assert found in (system if os.geteuid() == 0 else {"/h/.local/state/qinglong-edge"})


@pytest.mark.parametrize("end", ["", "\n", "\r\n"])
def test_a_token_file_holds_one_word(tmp_path: Path, end: str) -> None:
    (tmp_path / "token").write_bytes(f"{'A' * 43}{end}".encode())
    assert read_token_file(str(tmp_path / "token")) == "A" * 43


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"", "invalid_value"),
        (b"a b", "invalid_value"),
        (b"a\n\n", "invalid_value"),
        (b"\xc3\xbc", "invalid_value"),
        (b"\xff", "not_utf8"),
        (b"a" * 257, "too_large"),
    ],
)
def test_another_content_is_no_token(tmp_path: Path, content: bytes, code: str) -> None:
    (tmp_path / "token").write_bytes(content)
    with pytest.raises(UsageError) as raised:
        read_token_file(str(tmp_path / "token"))
    assert raised.value.code == code
