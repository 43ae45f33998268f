"""Error feedback: what a message leaves out is added to the next one.

p = g + e; c = C(p) is sent; e ← p - c. So nothing is lost, only late:
Σ C(p) + e = Σ g at every moment. The memory is in the units of what is sent
(gradients; for localsgd and diloco distances between parameters): the learning
rate is not in it, so an error from before a change of rate is applied at the
new rate.
"""

from typing import Protocol

from torch import Tensor


class Memory(Protocol):
    remembers: bool  # False: messages need not be decoded here

    def corrected(self, vector: Tensor) -> Tensor:
        """The vector to send, including the accumulated error. Call it before `sent`."""
        ...

    def sent(self, message: Tensor) -> None:
        """The message, as its receivers understand it, is on its way; the rest is owed."""
        ...

    def snapshot(self) -> dict[str, Tensor]: ...

    def restore(self, saved: dict[str, Tensor]) -> None: ...


class ErrorMemory:
    remembers = True

    def __init__(self, like: Tensor) -> None:
        self._owed = like.new_zeros(like.shape)

    def corrected(self, vector: Tensor) -> Tensor:
        return self._owed.add_(vector)

    def sent(self, message: Tensor) -> None:
        self._owed.sub_(message)

    def snapshot(self) -> dict[str, Tensor]:
        return {"owed": self._owed}

    def restore(self, saved: dict[str, Tensor]) -> None:
        self._owed.copy_(saved["owed"])


class NoMemory:
    """No error feedback: the error of a message is lost."""

    remembers = False

    def corrected(self, vector: Tensor) -> Tensor:
        return vector

    def sent(self, message: Tensor) -> None: ...

    def snapshot(self) -> dict[str, Tensor]:
        return {}

    def restore(self, saved: dict[str, Tensor]) -> None: ...


def memory_of(like: Tensor, *, error_feedback: bool) -> Memory:
    return ErrorMemory(like) if error_feedback else NoMemory()
