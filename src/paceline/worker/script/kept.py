"""State of a script that is saved with the model: `run.state` and the objects given to `run.keep`.

A replica has it beside the model and the optimizer (worker/replica.py), so checkpoints, resumed runs and
healed workers have it, too. It consists of tensors and plain values; nothing is pickled.
"""

import hashlib
import json
from typing import Any, Protocol, TypeVar, runtime_checkable

import torch

from paceline.checkpoints.snapshot import split_tensors
from paceline.core.errors import script_error
from paceline.tasks.torch_adapters import not_plain
from paceline.worker.script.stream import StreamSamples


@runtime_checkable
class Stateful(Protocol):
    """An object that `run.keep` takes, such as a module, a metric or a moving average."""

    def state_dict(self) -> Any: ...  # Any: tensors and plain values

    def load_state_dict(self, state_dict: Any) -> object: ...  # Any: as `state_dict` returned it


Kept = TypeVar("Kept", bound=Stateful)


class KeptState:
    def __init__(self) -> None:
        self.values: dict[str, Any] = {}  # run.state; Any: tensors and plain values
        self._objects: dict[str, Stateful] = {}
        self.stream: StreamSamples | None = None  # how far it was read

    @property
    def is_empty(self) -> bool:
        return not self.values and not self._objects

    def keep(self, name: str, kept: Kept) -> Kept:
        if name in self._objects:
            message = f"run.keep got {name!r} a second time"
            raise script_error("E120", message, "give every kept object a name of its own")
        if not isinstance(kept, Stateful):
            raise script_error(
                "E138",
                f"run.keep got a {type(kept).__name__}, which has no state_dict and load_state_dict",
                "add both methods, or put plain values and tensors into run.state",
            )
        self._objects[name] = kept
        return kept

    def state_dict(self) -> dict[str, Any]:  # Any: tensors and plain values
        state = self._own_state()
        return state if self.stream is None else {**state, "stream": self.stream.state_dict()}

    def _own_state(self) -> dict[str, Any]:  # Any: tensors and plain values
        objects = {name: kept.state_dict() for name, kept in self._objects.items()}
        for name, value in {"run.state": self.values, **objects}.items():
            if (held := not_plain(value)) is not None:
                raise script_error(
                    "E138",
                    f"{name} holds {held}, which a checkpoint cannot hold",
                    "keep tensors, numbers, strings, and lists and dicts of these",
                )
        return {"values": self.values, "objects": objects}

    def fingerprint(self) -> str:
        """Of what the script's own code changes."""
        skeleton, tensors = split_tensors(self._own_state())
        digest = hashlib.sha256(json.dumps(skeleton).encode())
        for tensor in tensors.values():
            digest.update(tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()

    def load_state_dict(self, saved: dict[str, Any]) -> None:  # Any: as `state_dict` returned it
        self.values.clear()
        self.values.update(saved["values"])
        for name, state in saved["objects"].items():
            if name in self._objects:
                self._objects[name].load_state_dict(state)
        if self.stream is not None:
            self.stream.load_state_dict(saved["stream"])
