"""Hugging Face checkpoints of a Llama: safetensors folders, read and written.

Ours keeps query, key and value in one matrix, theirs one after the other, and gate and up
in another, a row of each in turn. Nothing else differs, so both ways are exact.
Experts are named in tasks/llama/experts.py.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from paceline.core.errors import PacelineError
from paceline.tasks.llama.experts import experts_from_huggingface, experts_to_huggingface
from paceline.tasks.llama.feed_forward import pair_rows, split_pairs
from paceline.tasks.llama.shapes import LlamaShape

_OUTSIDE = {"embedding.weight": "model.embed_tokens.weight", "norm.weight": "model.norm.weight"}
_HEAD = ("head.weight", "lm_head.weight")
_ALIKE = {
    "before_attention.weight": "input_layernorm.weight",
    "attention.out.weight": "self_attn.o_proj.weight",
    "before_network.weight": "post_attention_layernorm.weight",
    "network.down.weight": "mlp.down_proj.weight",
}
_PAIRS = "network.gate_up_pairs.weight"
_JOINED = {
    "attention.query_key_value.weight": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    _PAIRS: ("mlp.gate_proj", "mlp.up_proj"),
}


_MUST_BE_EQUAL = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "intermediate_size",
    "rope_theta",
    "tie_word_embeddings",
    "sliding_window",
    "num_local_experts",
    "num_experts_per_tok",
)


def to_huggingface(state: Mapping[str, Tensor], shape: LlamaShape) -> dict[str, Tensor]:
    """Our tensors under their names."""
    weights = {theirs: state[ours] for ours, theirs in _OUTSIDE.items()}
    if not shape.tied:
        weights[_HEAD[1]] = state[_HEAD[0]]
    for ours, theirs in _layers(shape):
        names = theirs if isinstance(theirs, tuple) else (theirs,)
        parts = _split_tensor(ours, state[ours], shape) if isinstance(theirs, tuple) else (state[ours],)
        weights |= {name: part.contiguous() for name, part in zip(names, parts, strict=True)}
    return weights | experts_to_huggingface(state, shape) if shape.experts else weights


def from_huggingface(theirs: Mapping[str, Tensor], shape: LlamaShape) -> dict[str, Tensor]:
    """Their tensors under our names."""
    weights = {ours: _get(theirs, name) for ours, name in _OUTSIDE.items()}
    weights[_HEAD[0]] = weights["embedding.weight"] if shape.tied else _get(theirs, _HEAD[1])
    for ours, names in _layers(shape):
        if isinstance(names, tuple):
            parts = [_get(theirs, name) for name in names]
            weights[ours] = pair_rows(*parts) if ours.endswith(_PAIRS) else torch.cat(parts)
        else:
            weights[ours] = _get(theirs, names)
    return weights | experts_from_huggingface(_Named(theirs), shape) if shape.experts else weights


def read_folder(folder: Path, shape: LlamaShape) -> dict[str, Tensor]:
    """A folder as `save_pretrained` writes it: one file, or several and an index."""
    theirs: dict[str, Tensor] = {}
    for path in _files(folder):
        with safe_open(path, framework="pt") as file:
            theirs |= {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 - it is no mapping
    return from_huggingface(theirs, shape)


def check_folder(folder: Path, shape: LlamaShape) -> None:
    """Before billions of numbers are read: are they there, and of this shape, as far as the folder says?"""
    _files(folder)
    path = folder / "config.json"
    if not path.is_file():
        return
    said = json.loads(path.read_text())
    ours = config(shape, "")
    # In one object, as transformers 5 writes it, or among the other keys.
    rope = said.get("rope_parameters") or said
    said = {**said, "rope_theta": rope.get("rope_theta")}
    other = [
        f"{name} is {said[name]} in the folder and {ours.get(name)} in --model"
        for name in _MUST_BE_EQUAL
        if said.get(name) is not None and said[name] != ours.get(name)
    ]
    if other:
        raise PacelineError(f"{folder} has another model: {', '.join(other)}", "use the matching --model")


def _files(folder: Path) -> list[Path]:
    index = folder / "model.safetensors.index.json"
    if index.exists():
        names = sorted(set(json.loads(index.read_text())["weight_map"].values()))
    else:
        names = ["model.safetensors"]
    for name in names:
        if not (folder / name).is_file():
            raise PacelineError(
                f"there is no {name} in {folder}",
                "give a folder in Hugging Face's layout: model.safetensors, or several and their index",
            )
    return [folder / name for name in names]


def write_folder(folder: Path, state: Mapping[str, Tensor], shape: LlamaShape) -> None:
    """Write a folder that `AutoModelForCausalLM.from_pretrained` reads."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = to_huggingface(state, shape)
    dtype = str(tensors["model.norm.weight"].dtype).removeprefix("torch.")
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config(shape, dtype), indent=2) + "\n")


def config(shape: LlamaShape, dtype: str) -> dict[str, object]:
    """Their description of the shape."""
    scaling = shape.rope_scaling
    rope = None
    if scaling is not None:
        rope = {
            "rope_type": "llama3",
            "factor": scaling.factor,
            "low_freq_factor": scaling.low,
            "high_freq_factor": scaling.high,
            "original_max_position_embeddings": scaling.original_places,
        }
    return {
        **_family(shape),
        "vocab_size": shape.vocabulary,
        "hidden_size": shape.width,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.shared_heads,
        "intermediate_size": shape.inner,
        "head_dim": shape.head_size,
        "hidden_act": "silu",
        "max_position_embeddings": shape.places,
        "rms_norm_eps": shape.norm_eps,
        "rope_theta": shape.rope_base,
        "rope_scaling": rope,
        "tie_word_embeddings": shape.tied,
        "attention_bias": False,
        "mlp_bias": False,
        "dtype": dtype,
    }


def _family(shape: LlamaShape) -> dict[str, object]:
    """A window or experts are known to other classes of theirs than Llama's."""
    name = "Llama"
    more = dict[str, object]()
    if shape.window or shape.experts:
        name = "Mistral"
        more = {"sliding_window": shape.window or None}
    if shape.experts:
        name = "Mixtral"
        more |= {"num_local_experts": shape.experts, "num_experts_per_tok": shape.experts_used}
    return {"architectures": [f"{name}ForCausalLM"], "model_type": name.lower(), **more}


def _layers(shape: LlamaShape) -> Iterator[tuple[str, str | tuple[str, ...]]]:
    for number in range(shape.layers):
        ours = f"layers.{number}."
        theirs = f"model.layers.{number}."
        for own_name, name in _ALIKE.items():
            if not _is_of_experts(own_name, shape):
                yield ours + own_name, theirs + name
        for own_name, names in _JOINED.items():
            if not _is_of_experts(own_name, shape):
                yield ours + own_name, tuple(f"{theirs}{name}.weight" for name in names)


def _is_of_experts(name: str, shape: LlamaShape) -> bool:
    return bool(shape.experts) and name.startswith("network.")


def _split_tensor(name: str, whole: Tensor, shape: LlamaShape) -> tuple[Tensor, ...]:
    if name.endswith(_PAIRS):
        return split_pairs(whole)
    heads = (shape.heads, shape.shared_heads, shape.shared_heads)
    return torch.split(whole, [count * shape.head_size for count in heads])


class _Named(dict[str, Tensor]):
    """Mapping whose error names the missing tensor."""

    def __missing__(self, name: str) -> Tensor:
        return _get({}, name)


def _get(theirs: Mapping[str, Tensor], name: str) -> Tensor:
    if name not in theirs:
        raise PacelineError(f"there is no tensor {name}", "check --model")
    return theirs[name]
