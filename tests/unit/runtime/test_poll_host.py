"""The loop over poll: wake-ups, calls from threads, and sources that may be broken."""

import os
import select
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import pytest

from qinglong_edge.domain.errors import InvariantBroken, RefusedError
from qinglong_edge.domain.lifecycle import Cursors, End, Options, Unsettled
from qinglong_edge.executor.ambient import SystemClocks
from qinglong_edge.runtime.carrier import Hooks
from qinglong_edge.runtime.poll_host import PollHost, Source

PATIENCE_S = 10.0
CLOCKS = SystemClocks()
OPTIONS = Options(interval_ms=30_000, initial_delay_ms=30_000, stop_ms=5_000, early_gap_ms=1_000)


def nothing(cursors: Cursors, _stopping: Callable[[], bool]) -> Cursors:
    return cursors


class Running:
    """A host in a thread; what it reports is kept."""

    def __init__(
        self,
        options: Options = OPTIONS,
        work: Callable[[Cursors, Callable[[], bool]], Cursors] = nothing,
    ) -> None:
        self.cycles: list[Cursors] = []
        self.errors: list[BaseException] = []
        self.ends: list[End] = []
        hooks = Hooks(work, self.cycles.append, self.errors.append)
        self.host = PollHost(options, hooks, CLOCKS)
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()
        self.sync()

    def sync(self) -> None:
        for _ in range(2):
            turned = threading.Event()
            assert self.host.call_soon(turned.set)
            assert turned.wait(PATIENCE_S)

    def stop(self) -> End:
        self.host.stop()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()
        return self.ends[-1]

    def _run(self) -> None:
        self.ends.append(self.host.run())


@contextmanager
def running(*sources: Source) -> Iterator[Running]:
    made = Running()
    for source in sources:
        made.host.attach(source)
    made.start()
    yield made
    assert made.stop() is End.DRAINED


class Pipe:
    """A source that reads a pipe; subclasses break it."""

    def __init__(self) -> None:
        self.fd, self._writer = os.pipe()
        self.seen: list[bytes] = []
        self.read = threading.Event()

    def write(self, data: bytes) -> None:
        self.read.clear()
        os.write(self._writer, data)
        assert self.read.wait(PATIENCE_S)

    def close(self) -> None:
        for fd in {self.fd, self._writer}:
            os.close(fd)

    def interests(self) -> Iterable[tuple[int, int]]:
        return [(self.fd, select.POLLIN)]

    def ready(self, fd: int, mask: int) -> None:
        assert mask & select.POLLIN
        self.seen.append(os.read(fd, 100))
        self.read.set()

    def next_deadline_ms(self) -> int | None:
        return None

    def expire(self, now_ms: int) -> None:
        raise NotImplementedError


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    made = Pipe()
    yield made
    made.close()


@pytest.fixture
def polls(monkeypatch: pytest.MonkeyPatch) -> list[float | None]:
    """Return the sleeps that were asked for."""
    slept: list[float | None] = []
    real = select.poll

    class Counting:
        def __init__(self) -> None:
            self._poller = real()
            self.register = self._poller.register

        def poll(self, timeout: float | None) -> list[tuple[int, int]]:
            slept.append(timeout)
            return self._poller.poll(timeout)

    monkeypatch.setattr(select, "poll", Counting)
    return slept


def test_making_a_host_opens_and_starts_nothing() -> None:
    before = os.listdir("/proc/self/fd"), threading.active_count()
    made = Running()
    made.host.call_soon(int)
    assert (os.listdir("/proc/self/fd"), threading.active_count()) == before


def test_an_idle_host_sleeps_until_its_timer(polls: list[float | None]) -> None:
    """Half a second: the start, a timer and a settle a cycle, and the stop."""
    made = Running(OPTIONS._replace(interval_ms=250, initial_delay_ms=200, early_gap_ms=250))
    over = threading.Timer(0.5, made.host.stop)
    over.start()
    end = made.host.run()
    over.join()
    assert end is End.DRAINED
    assert len(made.cycles) in {1, 2}  # a busy machine may be late, never early
    assert len(polls) <= 1 + 2 * len(made.cycles) + 1
    assert made.errors == []


def test_without_news_there_is_one_sleep(polls: list[float | None], pipe: Pipe) -> None:
    with running(pipe) as made:
        before = len(polls)
        pipe.write(b"x")
        assert len(polls) <= before + 1
        made.sync()
    assert all(timeout is not None and timeout <= 30_000 for timeout in polls)


def test_a_run_leaves_no_descriptor_and_no_thread() -> None:
    before = sorted(os.listdir("/proc/self/fd")), threading.enumerate()
    made = Running(OPTIONS._replace(initial_delay_ms=0))
    settled = threading.Event()
    made.start()
    made.host.request_cycle(lambda _outcome: settled.set())
    assert settled.wait(PATIENCE_S)
    assert made.stop() is End.DRAINED
    assert (sorted(os.listdir("/proc/self/fd")), threading.enumerate()) == before


def test_calls_of_many_threads_are_made_once_each_in_the_loop() -> None:
    made_in: list[threading.Thread] = []
    with running() as made:

        def call() -> None:
            for _ in range(200):
                made.host.call_soon(lambda: made_in.append(threading.current_thread()))

        threads = [threading.Thread(target=call) for _ in range(8)]
        for each in threads:
            each.start()
        for each in threads:
            each.join(PATIENCE_S)
        made.sync()
    assert len(made_in) == 1_600
    assert len(set(made_in)) == 1


def test_a_call_that_raises_is_reported() -> None:
    wrong = ValueError("no")

    def fail() -> None:
        raise wrong

    with running() as made:
        made.host.call_soon(fail)
        made.sync()
        assert made.errors == [wrong]


def test_after_the_end_nothing_is_accepted() -> None:
    with running() as made:
        with pytest.raises(RefusedError) as caught:
            made.host.run()
        assert caught.value.code == "already_started"
    assert not made.host.call_soon(int)
    answers: list[object] = []
    made.host.request_cycle(answers.append)
    assert answers == [Unsettled(began=False)]
    made.host.early_tick()
    made.host.stop()


def test_a_stop_that_comes_before_the_run_is_kept_for_it() -> None:
    made = Running(OPTIONS._replace(initial_delay_ms=0))
    made.host.stop()
    assert made.host.run() is End.DRAINED
    assert made.cycles == []


def test_a_slow_cycle_does_not_keep_a_source_waiting(pipe: Pipe) -> None:
    begun, go = threading.Event(), threading.Event()

    def slow(cursors: Cursors, _stopping: Callable[[], bool]) -> Cursors:
        begun.set()
        go.wait(PATIENCE_S)
        return cursors

    made = Running(OPTIONS._replace(initial_delay_ms=0), slow)
    made.host.attach(pipe)
    made.start()
    assert begun.wait(PATIENCE_S)
    pipe.write(b"during")
    made.host.stop()
    made.sync()
    pipe.write(b"while stopping")
    go.set()
    assert made.stop() is End.DRAINED
    assert pipe.seen == [b"during", b"while stopping"]
    assert made.cycles == [Cursors()]


class Timed(Pipe):
    """Expire once, a little later."""

    def __init__(self) -> None:
        super().__init__()
        self.deadline_ms: int | None = CLOCKS.monotonic_ms() + 30
        self.expired_ms = 0

    def next_deadline_ms(self) -> int | None:
        return self.deadline_ms

    def expire(self, now_ms: int) -> None:
        self.expired_ms = now_ms
        self.read.set()
        self.deadline_ms = None


def test_a_deadline_of_a_source_ends_the_sleep_on_time() -> None:
    source = Timed()
    due_ms = source.deadline_ms
    with running(source) as made:
        assert source.read.wait(PATIENCE_S)
        made.sync()
    source.close()
    assert due_ms is not None
    assert source.expired_ms >= due_ms
    assert made.errors == []


class Stubborn(Pipe):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def next_deadline_ms(self) -> int | None:
        return 1

    def expire(self, now_ms: int) -> None:
        self.calls += 1


class Dumb(Pipe):
    def interests(self) -> Iterable[tuple[int, int]]:
        raise OSError("no")


class Raising(Pipe):
    def ready(self, fd: int, mask: int) -> None:
        raise OSError("no")


class Closed(Pipe):
    def __init__(self) -> None:
        super().__init__()
        self.close()
        self.fd = 1_000_000

    def close(self) -> None:
        if self.fd != 1_000_000:
            super().close()


@pytest.mark.parametrize("kind", [Stubborn, Dumb, Raising, Closed])
def test_a_source_that_fails_twice_is_detached_and_others_go_on(
    kind: type[Pipe], pipe: Pipe
) -> None:
    broken = kind()
    if kind is Raising:
        os.write(broken._writer, b"x")
    with running(broken, pipe) as made:
        made.sync()
        pipe.write(b"still here")
        made.sync()
    broken.close()
    assert len(made.errors) == 3
    last = made.errors[-1]
    assert isinstance(last, InvariantBroken)
    assert last.details == {"source": kind.__name__}
    assert pipe.seen == [b"still here"]


class Moody(Pipe):
    """Fail at every other message."""

    def ready(self, fd: int, mask: int) -> None:
        super().ready(fd, mask)
        if len(self.seen) % 2:
            raise ValueError("a bad message")


def test_a_source_that_recovers_stays() -> None:
    moody = Moody()
    with running(moody) as made:
        for _ in range(6):
            moody.write(b"x")
        made.sync()
    moody.close()
    assert len(moody.seen) == 6
    assert len(made.errors) == 3


def test_a_source_may_leave_during_its_own_turn() -> None:
    class Leaving(Pipe):
        def ready(self, fd: int, mask: int) -> None:
            super().ready(fd, mask)
            made.host.detach(self)

    leaving = Leaving()
    with running(leaving) as made:
        leaving.write(b"x")
        made.sync()
    leaving.close()
    assert made.errors == []
