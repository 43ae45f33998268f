"""The launcher of an elastic run on Ray when actors die, find no room, or cannot be started.

Ray is told by the test what its actors say; the processes that they say they are, and the supervisor, are
real.
"""

import json
import subprocess
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.fixtures.runs.plans import small_plan
from tests.fixtures.wording import Wording

from paceline.core.errors import NotReadyError
from paceline.launchers.elastic import ElasticSupervisor
from paceline.launchers.local import Message, RunOutcome
from paceline.launchers.ray.client import ActorLost, Handle, Pending, RayClient, Reservation, StopRequest
from paceline.launchers.ray.elastic import ActorProcess, ElasticGroup
from paceline.launchers.ray.resources import Node
from paceline.launchers.supervision import OperatorRequest, OperatorResponse, RestartPolicy
from paceline.plan.plan import Elastic, Plan
from paceline.worker.control import WorkerControl
from paceline.worker.entry.ray_elastic import shared_block

Story = Generator[None]
CREW = Elastic(workers=2, min_workers=1, max_workers=2)


class Room(Reservation):
    def __init__(self) -> None:
        super().__init__(None)

    def is_there(self) -> bool:
        return True


@dataclass(eq=False)
class Question:
    who: str
    answer: str | ActorLost | None = None


class ToldRay(RayClient):
    """Each look at it is one turn of the story that the test tells."""

    def __init__(self) -> None:
        super().__init__(is_ours=False)
        self.story: Story = iter_nothing()
        self.started: list[str] = []
        self.killed: list[str] = []
        self.orders: list[Message] = []
        self._open: dict[str, Question] = {}  # the newest of each

    def nodes(self) -> list[Node]:
        return [Node(name="127.0.0.1", cpus=2)]

    def reserve(self, bundles: Sequence[Mapping[str, float]], strategy: str) -> Reservation:
        return Room()

    def start(
        self, kind: type, args: Sequence[object], place: Reservation, index: int, *, calls_at_once: int
    ) -> Handle:
        self.started.append(str(args[0]))
        return Handle(str(args[0]))

    def call(self, actor: Handle, method: str, *args: object) -> Pending:
        question = Question(str(actor))
        if method == "poll":
            self._open[question.who] = question
        elif method == "begin":
            self.orders.append(json.loads(str(args[0])))
        return Pending(question)

    def wait(self, pending: Sequence[Pending], timeout_s: float) -> list[Pending]:
        next(self.story, None)
        return [
            pending for pending in pending if isinstance(pending, Question) and pending.answer is not None
        ]

    def take(self, answered: Pending) -> tuple[str, list[bytes]]:
        assert isinstance(answered, Question)
        if isinstance(answered.answer, ActorLost):
            raise answered.answer
        return str(answered.answer), []

    def kill(self, actor: Handle) -> None:
        self.killed.append(str(actor))

    def release(self, place: Reservation) -> None: ...

    def says(self, who: str, *command: Message, is_over: bool = False) -> None:
        self._open[who].answer = json.dumps({"said": list(command), "over": is_over})

    def ends(self, who: str) -> None:
        self.says(who, {"ev": "report", "who": who}, {"ev": "exit", "code": 0}, is_over=True)

    def loses(self, who: str, why: str, *, is_start: bool = False) -> None:
        self._open[who].answer = ActorLost(why, is_start=is_start)


def iter_nothing() -> Story:
    yield


@dataclass
class Office:
    """Whom the supervisor talks to."""

    told: list[str] = field(default_factory=list)
    wanted: list[OperatorRequest] = field(default_factory=list)

    def lost(self, who: str, pid: int, reason: str) -> None:
        self.told.append(f"{who} ({pid}): {reason}")

    def give_up(self) -> None: ...

    def stopping(self) -> None: ...

    def is_alone(self) -> bool:
        return False

    def requests(self) -> list[OperatorRequest]:
        result, self.wanted = self.wanted, []
        return result

    def answer(self, given: OperatorResponse) -> None: ...

    def given_up(self) -> dict[str, int]:
        return {}

    def take_messages(self) -> list[str]:
        return []


class Run:
    def __init__(self) -> None:
        self.ray, self.office, self.notes = ToldRay(), Office(), list[str]()
        self.plan: Plan = small_plan("ssgd", elastic=CREW)

    def of(self, story: Story, run_dir: Path) -> RunOutcome:
        self.ray.story = story
        restarts = RestartPolicy(budget=20, min_workers=1, longest_s=0.0)
        supervisor = ElasticSupervisor(
            {}, self.office, restarts, self.notes.append, CREW, shards=2, actions=self.office
        )
        group = ElasticGroup(self.plan, self.ray, self._hear, StopRequest(), supervisor)
        return group.run(run_dir, None)

    def _hear(self, message: Message) -> None:
        if message["ev"] == "note":
            self.notes.append(str(message["text"]))


@contextmanager
def processes(count: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    results = [subprocess.Popen(["sleep", "600"]) for _ in range(count)]
    try:
        yield results
    finally:
        for process in results:
            process.kill()
            process.wait()


def _is_there(who: str, process: subprocess.Popen[bytes]) -> Message:
    return {"ev": "started", "who": who, "pid": process.pid}


def test_a_dead_process_is_reported_at_once_and_replaced_as_soon_as_ray_reports_it_too(
    tmp_path: Path,
) -> None:
    run = Run()
    with processes(3) as (first, second, third):

        def story() -> Story:
            run.ray.says("worker-0", _is_there("worker-0", first))
            run.ray.says("worker-1", _is_there("worker-1", second))
            yield
            second.kill()
            second.wait()
            while not run.office.told:
                yield
            assert len(run.office.told) == 1
            assert run.office.told[0].startswith(f"worker-1 ({second.pid}): ")
            for _ in range(5):
                yield
            assert run.ray.started == ["worker-0", "worker-1"]  # its place may be on a node that is gone
            run.ray.loses("worker-1", "its node was lost")
            while len(run.ray.started) < 3:
                yield
            assert any("worker-1: its node" in note for note in run.notes)
            run.ray.loses("worker-1", "its node was lost")  # where Ray had put the replacement, too
            while len(run.ray.started) < 4:
                yield
            assert len(run.office.told) == 1  # a worker that never started is no loss
            run.ray.says("worker-1", _is_there("worker-1", third))
            yield
            run.ray.ends("worker-0")
            run.ray.ends("worker-1")
            yield

        ended = run.of(story(), tmp_path)
        assert (first.wait(timeout=60), third.wait(timeout=60)) == (-9, -9)  # none is left
    assert ended.ledger.cause() is None
    assert set(ended.reports) == {"worker-0", "worker-1"}
    assert run.ray.started == ["worker-0", "worker-1", "worker-1", "worker-1"]


def test_one_that_found_no_room_does_not_hold_up_the_end(tmp_path: Path) -> None:
    run = Run()
    with processes(1) as (only,):

        def story() -> Story:
            run.ray.says("worker-0", _is_there("worker-0", only))
            yield
            run.ray.ends("worker-0")
            yield

        ended = run.of(story(), tmp_path)
    assert ended.ledger.cause() is None
    assert "worker-1" in run.ray.killed


def test_an_actor_that_cannot_be_started_ends_the_run_with_the_reason(tmp_path: Path) -> None:
    run = Run()

    def story() -> Story:
        run.ray.loses("worker-1", "it could not be started: ImportError", is_start=True)
        yield

    cause = run.of(story(), tmp_path).ledger.cause()
    assert cause is not None
    assert "ImportError" in cause.what
    assert run.ray.started == ["worker-0", "worker-1"]  # none is started again


def test_requests_to_save_and_to_leave_are_read_from_shared_memory_opened_by_name(tmp_path: Path) -> None:
    run = Run()
    with processes(2) as (first, second):

        def story() -> Story:
            order = run.ray.orders[0]
            block = shared_block(run.plan, str(order["control"]), str(order["secret"]))
            mine = WorkerControl(block, 1, run.notes.append)
            run.ray.says("worker-0", _is_there("worker-0", first))
            run.ray.says("worker-1", _is_there("worker-1", second))
            yield
            assert not mine.wants_leave()
            run.office.wanted.append(OperatorRequest(1, "checkpoint"))
            while not mine.takes_save():
                yield
            run.office.wanted.append(OperatorRequest(2, "remove"))
            while not mine.wants_leave():
                yield
            run.ray.says(
                "worker-1", {"ev": "left", "who": "worker-1"}, {"ev": "exit", "code": 0}, is_over=True
            )
            while not any(note.startswith("worker-1 left") for note in run.notes):
                yield
            run.ray.ends("worker-0")
            yield

        ended = run.of(story(), tmp_path)
    assert run.ray.started == ["worker-0", "worker-1"]
    assert set(ended.reports) == {"worker-0"}


def test_only_the_launcher_s_own_memory_is_taken_for_it(wording: Wording) -> None:
    plan = small_plan("ssgd", elastic=CREW)
    with wording.raises(NotReadyError):
        shared_block(plan, "/proc/self/exe", "0123456789abcdef")
    with wording.raises(NotReadyError):
        shared_block(plan, "/proc/0/fd/3", "0123456789abcdef")


def test_a_process_is_seen_to_end_and_is_ended() -> None:
    with processes(2) as (one, other):
        watched = ActorProcess(one.pid)
        assert not watched.is_gone()
        one.kill()
        one.wait()
        assert watched.is_gone()
        watched.end()
        ActorProcess(other.pid).end()
        assert other.wait(timeout=60) == -9
