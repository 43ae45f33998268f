"""The Llama equals Hugging Face's on the same random weights."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.fixtures.tasks.llama import KINDS, TINY
from tests.fixtures.wording import Wording

from paceline.core.errors import PacelineError
from paceline.tasks.llama.model import Layer, Llama, RecomputePolicy
from paceline.tasks.llama.shapes import SHAPES, LlamaShape
from paceline.tasks.llama.task import LlamaTask
from paceline.tasks.llama.weights import (
    check_folder,
    config,
    from_huggingface,
    read_folder,
    to_huggingface,
    write_folder,
)


def _theirs(shape: LlamaShape) -> torch.nn.Module:
    from transformers import AutoConfig, AutoModelForCausalLM

    given = config(shape, "float32")
    model: torch.nn.Module = AutoModelForCausalLM.from_config(
        AutoConfig.for_model(given.pop("model_type"), **given)
    )
    return model


def _tokens(rows: int = 2, length: int = 48) -> torch.Tensor:
    return torch.randint(0, TINY.vocabulary, (rows, length), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("shape", KINDS.values(), ids=KINDS.keys())
def test_scores_loss_and_gradients_are_those_of_hugging_face(shape: LlamaShape) -> None:
    torch.manual_seed(0)
    theirs, tokens = _theirs(shape), _tokens()
    ours = Llama(shape)
    ours.load_state_dict(from_huggingface(theirs.state_dict(), shape))
    answer = theirs(input_ids=tokens, labels=tokens)
    assert torch.allclose(ours(tokens), answer.logits, atol=1e-4)
    loss = ours(tokens[:, :-1], tokens[:, 1:])
    assert float(loss.detach()) == pytest.approx(float(answer.loss.detach()), abs=1e-5)
    loss.backward()
    answer.loss.backward()
    mine = {name: p.grad for name, p in ours.named_parameters()}
    huggingface = to_huggingface(mine, shape)  # type: ignore[arg-type]  # every parameter has a gradient
    for name, parameter in theirs.named_parameters():
        assert parameter.grad is not None
        assert torch.allclose(huggingface[name], parameter.grad, atol=1e-4), name


def test_a_written_folder_is_one_of_hugging_faces(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    for number, shape in enumerate(KINDS.values()):
        ours, folder = Llama(shape), tmp_path / str(number)
        write_folder(folder, ours.state_dict(), shape)
        theirs = AutoModelForCausalLM.from_pretrained(folder)
        assert torch.allclose(ours(_tokens()), theirs(input_ids=_tokens()).logits, atol=1e-4)


def test_what_they_write_is_read_also_in_several_files(tmp_path: Path) -> None:
    shape = KINDS["llama 3.1, own head"]
    theirs = _theirs(shape)
    theirs.save_pretrained(tmp_path / "one")  # type: ignore[operator]  # theirs has it
    theirs.save_pretrained(tmp_path / "many", max_shard_size="100KB")  # type: ignore[operator]  # likewise
    assert len(list((tmp_path / "many").glob("*.safetensors"))) > 1
    for name in ("one", "many"):
        ours = Llama(shape)
        ours.load_state_dict(read_folder(tmp_path / name, shape))
        assert torch.allclose(ours(_tokens()), theirs(input_ids=_tokens()).logits, atol=1e-4)


def test_both_ways_give_the_same_bits() -> None:
    for shape in KINDS.values():
        state = Llama(shape).state_dict()
        again = from_huggingface(to_huggingface(state, shape), shape)
        assert again.keys() == state.keys()
        assert all(torch.equal(again[name], state[name]) for name in state)


def test_a_folder_of_another_model_is_refused(tmp_path: Path, wording: Wording) -> None:
    with wording.raises(PacelineError):
        read_folder(tmp_path, TINY)
    write_folder(tmp_path, Llama(TINY).state_dict(), TINY)
    with wording.raises(PacelineError):
        read_folder(tmp_path, KINDS["mistral"])


def test_another_model_is_refused_before_its_numbers_are_read(tmp_path: Path, wording: Wording) -> None:
    shape = KINDS["llama 3.1, own head"]
    theirs = _theirs(shape)
    theirs.save_pretrained(tmp_path / "theirs")  # type: ignore[operator]  # theirs has it
    check_folder(tmp_path / "theirs", shape)
    write_folder(tmp_path / "ours", Llama(shape).state_dict(), shape)
    check_folder(tmp_path / "ours", shape)
    for folder in ("theirs", "ours"):
        with wording.raises(PacelineError):
            LlamaTask(seed=0, start=str(tmp_path / folder))
        other = replace(shape, rope_base=1e4)
        with wording.raises(PacelineError):
            check_folder(tmp_path / folder, other)
    with wording.raises(PacelineError):
        LlamaTask(seed=0, start=str(tmp_path))


# Of the published checkpoints: what `model.num_parameters()` says, from their cards.
@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("llama_v2_7b", 6_738_415_616),
        ("llama_v2_13b", 13_015_864_320),
        ("llama_v3_1b", 1_235_814_400),
        ("llama_v3_3b", 3_212_749_824),
        ("llama_v3_8b", 8_030_261_248),
        ("llama_v3_70b", 70_553_706_496),
        ("mistral_7b", 7_248_023_552),
        ("mistral_v01_7b", 7_241_732_096),
        ("mixtral_8x7b", 46_702_792_704),
    ],
)
def test_published_sizes_are_the_published_ones(name: str, parameters: int) -> None:
    shape = SHAPES[name]
    assert shape.parameters == parameters
    with torch.device("meta"):
        layer = sum(p.numel() for p in Layer(shape).parameters())
    tables = (1 if shape.tied else 2) * shape.vocabulary * shape.width
    assert layer * shape.layers + tables + shape.width == parameters


def test_work_is_six_for_each_parameter_and_half_a_square_of_attention() -> None:
    shape = SHAPES["llama_v3_1b"]
    # 12 * layers * width * length is the usual term for all pairs; causal attention looks at half of them.
    assert shape.flops_per_token(2048) == 6 * 1_235_814_400 + 12 * 16 * 2048 * 2048 / 2


def test_a_window_and_unselected_experts_cost_no_work() -> None:
    windowed, all_of_it = SHAPES["mistral_v01_7b"], replace(SHAPES["mistral_v01_7b"], window=0)
    assert windowed.flops_per_token(4096) == all_of_it.flops_per_token(4096)
    pairs = sum(min(place + 1, 4096) for place in range(16_384)) / 16_384
    work = 12 * 32 * 4096 * pairs
    assert windowed.flops_per_token(16_384) - all_of_it.flops_per_token(0) == pytest.approx(work, rel=1e-3)
    mixtral = SHAPES["mixtral_8x7b"]
    requested = mixtral.parameters - 6 * 32 * 3 * 4096 * 14_336
    assert requested == 12_879_925_248  # "13B active", as its authors say
    assert mixtral.flops_per_token(0) == 6 * (requested - 32_000 * 4096)


# From the published config.json: what the sizes above do not tell apart.
@pytest.mark.parametrize(
    ("name", "rope_theta", "factor", "places", "tied", "heads"),
    [
        ("llama_v2_7b", 1e4, None, 4096, False, (32, 32, 128)),
        ("llama_v3_1b", 5e5, 32.0, 131_072, True, (32, 8, 64)),
        ("llama_v3_3b", 5e5, 32.0, 131_072, True, (24, 8, 128)),
        ("llama_v3_8b", 5e5, 8.0, 131_072, False, (32, 8, 128)),
        ("mistral_7b", 1e6, None, 32_768, False, (32, 8, 128)),
        ("mistral_v01_7b", 1e4, None, 32_768, False, (32, 8, 128)),
        ("mixtral_8x7b", 1e6, None, 32_768, False, (32, 8, 128)),
    ],
)
def test_published_numbers_are_written_as_published(
    name: str, rope_theta: float, factor: float | None, places: int, tied: bool, heads: tuple[int, ...]
) -> None:
    given = config(SHAPES[name], "bfloat16")
    assert (given["rope_theta"], given["max_position_embeddings"]) == (rope_theta, places)
    assert (given["tie_word_embeddings"], given["rms_norm_eps"]) == (tied, 1e-5)
    assert (given["num_attention_heads"], given["num_key_value_heads"], given["head_dim"]) == heads
    stretch = {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    assert given["rope_scaling"] == (None if factor is None else stretch)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("keeps", RecomputePolicy)
def test_what_is_computed_again_changes_no_bit(keeps: RecomputePolicy, compiled: bool) -> None:
    shape, result = KINDS["llama 2, no shared heads"], []
    for how in (RecomputePolicy.ALL, keeps):
        torch.manual_seed(0)
        layer = Layer(shape, how)
        for parameter in layer.parameters():
            torch.nn.init.normal_(parameter, std=0.1)
        compute = layer._remembering
        if compiled and how is keeps:  # without the code generator, which needs a compiler of C++
            compute = torch.compile(layer._remembering, fullgraph=True, backend="aot_eager")
        stream = torch.randn(2, 16, shape.width).requires_grad_()
        turns = torch.randn(16, 2, shape.head_size // 2)
        out = compute(stream, turns)
        torch.autograd.backward(out.square().sum())
        result.append([out, stream.grad, *(p.grad for p in layer.parameters())])
    assert all(torch.equal(a, b) for a, b in zip(*result, strict=True))


def test_less_is_kept_for_backward() -> None:
    shape, kept = TINY, {}
    for how in RecomputePolicy:
        saved: dict[int, int] = {}

        def note(tensor: torch.Tensor, saved: dict[int, int] = saved) -> torch.Tensor:
            saved[tensor.data_ptr()] = tensor.numel()
            return tensor

        layer = Layer(shape, how)
        stream = torch.randn(2, 64, shape.width).requires_grad_()
        turns = torch.randn(64, 2, shape.head_size // 2)
        own = {p.data_ptr() for p in layer.parameters()}
        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            layer(stream, turns).sum().backward()
        kept[how] = sum(size for at, size in saved.items() if at not in own)
    assert kept[RecomputePolicy.INPUTS] < kept[RecomputePolicy.ALL]
