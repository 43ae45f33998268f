"""How do threads of one process, run one at a time, talk to a server? The promises of `ParameterStore`.

The server answers in the caller's own turn; who waits gives the turn away, see in_process.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from paceline.errors import SilenceError
from paceline.ids import Clock, Rank, Version
from paceline.transport.in_process import Waiting
from paceline.transport.ports import Answer, Obsolete, Pulled, Reply, Slots, StoreHandler, Traffic


@dataclass(frozen=True, slots=True)
class Mail:
    """What a server has said to its workers, and they have not read yet."""

    answers: dict[Rank, Answer] = field(default_factory=dict)
    obsolete: dict[Rank, Version] = field(default_factory=dict)


class InProcessStore:
    """A worker's end of a server that answers in the caller's own turn."""

    def __init__(
        self,
        handler: StoreHandler,
        rank: Rank,
        mail: Mail,
        *,
        turns: Waiting,
        timeout_s: float,
        device: torch.device | None = None,
    ) -> None:
        self._device = device
        self._handler = handler
        self._rank = rank
        self._mail = mail  # shared by all workers of this server
        self._version = Version(0)
        self._turns = turns
        self._timeout_s = timeout_s
        self._push_bytes, self._pull_bytes = 0, 0

    def open(self, numel: int, dtype: torch.dtype, push_bytes: int | None = None) -> Slots:
        slots = Slots.new(numel, dtype, push_bytes, device=self._device)
        self._push_bytes, self._pull_bytes = slots.gradients.nbytes, slots.parameters.nbytes
        self._handler.attach(self._rank, slots)
        return slots

    def join(self, clock: Clock) -> None:
        self._note(self._handler.join(self._rank, clock))

    def pull(self) -> Pulled:
        started_ns = self._turns.now_ns()
        if not self._turns.wait_until(lambda: self._rank in self._mail.answers, self._timeout_s):
            raise SilenceError(
                f"waited {self._timeout_s:g} s for the parameter server", "another worker holds us back"
            )
        wait_ns = self._turns.now_ns() - started_ns
        answer = self._mail.answers.pop(self._rank)
        self._version = answer.version
        payload_bytes = 0 if answer.position is None else self._pull_bytes
        return Pulled(answer.version, answer.position, Traffic(0, payload_bytes, wait_ns))

    def push(self, *, wants_stop: bool) -> Traffic:
        self._note(self._handler.push(self._rank, wants_stop=wants_stop))
        return Traffic(self._push_bytes, 0, 0)

    def is_obsolete(self) -> bool:
        return self._mail.obsolete.get(self._rank, self._version) > self._version

    def wait_unless_obsolete(self, duration_s: float) -> bool:
        return self._turns.wait_until(self.is_obsolete, max(0.0, duration_s))

    def again(self) -> None:
        self._note(self._handler.again(self._rank))

    def leave(self) -> None:
        self._note(self._handler.leave(self._rank))

    def close(self) -> None: ...

    def _note(self, replies: Sequence[Reply]) -> None:
        for reply in replies:
            match reply:
                case Answer():
                    self._mail.answers[reply.rank] = reply
                case Obsolete(rank, version):
                    self._mail.obsolete[rank] = version
