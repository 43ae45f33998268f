"""The experts equal Mixtral's of Hugging Face on the same random weights, also sharded over two ranks."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.fixtures.runs.plans import small_plan
from tests.fixtures.runs.run_plans import real
from tests.fixtures.wording import Wording

from paceline.core.errors import PacelineError
from paceline.launchers.local import LocalLauncher
from paceline.plan.plan import Dtype
from paceline.tasks.llama.experts import Experts
from paceline.tasks.llama.feed_forward import pair_rows
from paceline.tasks.llama.model import Llama, RecomputePolicy
from paceline.tasks.llama.shapes import SHAPES
from paceline.tasks.llama.weights import from_huggingface, read_folder, to_huggingface, write_folder

TINY = SHAPES["mixtral_tiny"]


@pytest.mark.parametrize("keeps", RecomputePolicy)
def test_scores_loss_and_gradients_are_those_of_hugging_face(keeps: RecomputePolicy, tmp_path: Path) -> None:
    from transformers import MixtralForCausalLM

    torch.manual_seed(0)
    ours = Llama(TINY, keeps=keeps)
    for parameter in ours.parameters():  # wide apart, so that no two experts fit a token equally well
        torch.nn.init.normal_(parameter, std=0.2)
    write_folder(tmp_path, ours.state_dict(), TINY)
    theirs = MixtralForCausalLM.from_pretrained(tmp_path)
    tokens = torch.randint(0, TINY.vocabulary, (2, 48))
    answer = theirs(input_ids=tokens, labels=tokens)
    assert torch.allclose(ours(tokens), answer.logits, atol=1e-4)
    loss = ours(tokens[:, :-1], tokens[:, 1:])
    assert float(loss.detach()) == pytest.approx(float(answer.loss.detach()), abs=1e-5)
    loss.backward()
    answer.loss.backward()
    result = dict(ours.named_parameters())
    for number, layer in enumerate(theirs.model.layers):
        gates_then_ups = layer.mlp.experts.gate_up_proj.grad
        expected = {
            "choice.weight": layer.mlp.gate.weight.grad,
            "gate_up_pairs": pair_rows(*gates_then_ups.chunk(2, dim=-2)),
            "down": layer.mlp.experts.down_proj.grad,
        }
        for name, theirs_there in expected.items():
            gradient = result[f"layers.{number}.network.{name}"].grad
            assert gradient is not None
            assert torch.allclose(gradient, theirs_there, atol=1e-4), name


def test_what_they_write_is_read(tmp_path: Path) -> None:
    from transformers import MixtralConfig, MixtralForCausalLM

    from paceline.tasks.llama.weights import config

    theirs = MixtralForCausalLM(MixtralConfig.from_dict(config(TINY, "float32")))
    theirs.save_pretrained(tmp_path)
    ours, tokens = Llama(TINY), torch.arange(40).view(2, 20)
    ours.load_state_dict(read_folder(tmp_path, TINY))
    assert torch.allclose(ours(tokens), theirs(input_ids=tokens).logits, atol=1e-4)


def test_both_ways_give_the_same_bits_and_what_is_missing_is_named(wording: Wording) -> None:
    state = Llama(TINY).state_dict()
    there = to_huggingface(state, TINY)
    again = from_huggingface(there, TINY)
    assert again.keys() == state.keys()
    assert all(torch.equal(again[name], state[name]) for name in state)
    del there["model.layers.1.block_sparse_moe.experts.3.w2.weight"]
    with wording.raises(PacelineError):
        from_huggingface(there, TINY)


def test_an_expert_without_tokens_has_a_gradient_of_zero() -> None:
    part = Experts(replace(TINY, experts=3))
    with torch.no_grad():
        part.choice.weight.copy_(torch.tensor([[1.0], [1.0], [-1.0]]).expand(3, TINY.width))
    stream = torch.ones(1, 5, TINY.width)
    torch.autograd.backward(part(stream, stream).sum())
    assert part.down.grad is not None
    assert part.gate_up_pairs.grad is not None
    assert part.down.grad[0].abs().sum() > 0
    assert part.down.grad[2].abs().sum() == 0
    assert part.gate_up_pairs.grad[2].abs().sum() == 0


@pytest.mark.soak
def test_two_ranks_of_fsdp_end_where_one_worker_ends(launcher: LocalLauncher, tmp_path: Path) -> None:
    def losses(mode: str, sizes: tuple[int, ...]) -> list[float]:
        plan = small_plan(
            mode,
            task="llama",
            task_options={"model": "mixtral_tiny", "seq_len": 16},
            steps=4,
            dtype=Dtype.FLOAT64,
            lr=0.01,
            batch_sizes=sizes,
        )
        rows = real(plan, tmp_path / mode, launcher).history.steps.values()
        return [sum(row.loss for row in step) / len(step) for step in zip(*rows, strict=True)]

    assert losses("fsdp", (4, 4)) == pytest.approx(losses("single", (8,)), rel=1e-9)
