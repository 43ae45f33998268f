"""How is an optimizer's nested state stored without pickle? Tensors apart, the rest as JSON.

Every tensor is replaced by a marker with its name; the skeleton that remains
holds only what JSON can say. Anything else is refused when saving.
"""

from typing import Any

from torch import Tensor

MARK = "__tensor__"


def split(value: Any, prefix: str = "state") -> tuple[Any, dict[str, Tensor]]:  # Any: nested state
    """(skeleton, tensors by name)."""
    tensors: dict[str, Tensor] = {}
    return _strip(value, prefix, tensors), tensors


def _strip(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:  # Any: nested state
    if isinstance(value, Tensor):
        tensors[name] = value.detach().clone().contiguous()
        return {MARK: name}
    if isinstance(value, dict):
        # JSON knows only string keys; torch numbers its parameters.
        return {"dict": [[k, _strip(v, f"{name}.{k}", tensors)] for k, v in value.items()]}
    if isinstance(value, list | tuple):
        return {"list": [_strip(v, f"{name}.{i}", tensors) for i, v in enumerate(value)]}
    assert value is None or isinstance(value, bool | int | float | str), (
        f"{name} is a {type(value).__name__}, which a checkpoint cannot hold"
    )
    return value


def join(skeleton: Any, tensors: dict[str, Tensor]) -> Any:  # Any: nested state
    if not isinstance(skeleton, dict):
        return skeleton
    if MARK in skeleton:
        return tensors[skeleton[MARK]]
    if "list" in skeleton:
        return [join(part, tensors) for part in skeleton["list"]]
    return {key: join(part, tensors) for key, part in skeleton["dict"]}
