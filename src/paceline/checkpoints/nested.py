"""How is an optimizer's nested state stored without pickle? Tensors apart, the rest as JSON.

Every tensor is replaced by a marker with its name; the skeleton that remains
holds only what JSON can say. Anything else is refused when saving.
"""

from typing import Any

from torch import Tensor

MARK = "__tensor__"


def split(
    value: Any, prefix: str = "state", *, copy: bool = True
) -> tuple[Any, dict[str, Tensor]]:  # Any: nested state
    """(skeleton, tensors by name); without `copy` the tensors are the live ones."""
    tensors: dict[str, Tensor] = {}
    skeleton = _strip(value, prefix, tensors)
    return skeleton, {name: _copied(tensor) for name, tensor in tensors.items()} if copy else tensors


def marked(skeleton: Any) -> set[str]:  # Any: nested state
    """The names of all tensors that belong into it."""
    if not isinstance(skeleton, dict):
        return set()
    if MARK in skeleton:
        return {skeleton[MARK]}
    parts = skeleton["list"] if "list" in skeleton else [part for _, part in skeleton["dict"]]
    return set[str]().union(*map(marked, parts))


def _copied(tensor: Tensor) -> Tensor:
    return tensor.clone().contiguous()


def _strip(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:  # Any: nested state
    if isinstance(value, Tensor):
        tensors[name] = value.detach()
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
