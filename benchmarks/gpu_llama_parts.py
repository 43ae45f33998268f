"""Parts of the Llama benchmark that torch alone computes, without a Paceline run.

text       a tokenizer, trained on the text, and the text's tokens
kernels    our kernels against plain torch in float64, relative errors
ceiling    the fastest matrix product that this GPU does
hf         Hugging Face's model of the same shape on the same tokens, eager and compiled

Each is a process of its own (`python -m benchmarks.gpu_llama_parts NAME …`), which writes its results
after every row: a time limit then costs the rows that were not reached, and no others.
"""

import argparse
import gc
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.attention import sdpa_kernel

from benchmarks.gpu_llama_kernels import kernels
from paceline.core.clock import monotonic_s
from paceline.tasks.llama.model import ATTENTION
from paceline.tasks.llama.shapes import SHAPES, LlamaShape
from paceline.tasks.llama.text import Windows, split, tokens_of
from paceline.tasks.llama.weights import config
from paceline.tasks.text import toy_text

Row = dict[str, object]
WARM, TIMED = 3, 8


def train_tokenizer(text: Path | None, work: Path, words: int) -> Row:
    """Train a byte-level BPE of `words` tokens; the text is copied next to it for the later parts."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    raw = text.read_text() if text is not None else toy_text(0, 1 << 21)
    (work / "text.txt").write_text(raw)
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=words, initial_alphabet=alphabet, show_progress=False)
    made.train_from_iterator(raw.splitlines(keepends=True), trainer)
    made.save(str(work / "tokenizer.json"))
    tokens = tokens_of(str(work / "text.txt"), str(work / "tokenizer.json"), 0)
    return {"what": "text", "characters": len(raw), "words": made.get_vocab_size(), "tokens": len(tokens)}


def ceiling(device: torch.device, size: int) -> Row:
    a, b = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))
    took_s = min(_seconds(lambda: a @ b, device, 10) for _ in range(3))
    return {"what": f"matrix product {size}^3, bf16", "tflops": 2 * size**3 / took_s / 1e12}


def hf(
    shape: LlamaShape, work: Path, device: torch.device, *, length: int, batch: int, compiles: bool
) -> Iterator[Row]:
    """Eager, then compiled, each with fused AdamW on bf16 weights, and the fastest attention there is."""
    from transformers import LlamaConfig, LlamaForCausalLM

    settings = LlamaConfig.from_dict({**config(shape, "bfloat16"), "use_cache": False})
    settings._attn_implementation = "sdpa"
    torch.manual_seed(0)
    with torch.device(device):
        model = LlamaForCausalLM(settings).to(torch.bfloat16)
    windows, _ = split(tokens_of(str(work / "text.txt"), str(work / "tokenizer.json"), 0), length)
    for way in ("eager", "compiled") if compiles else ("eager",):
        called = torch.compile(model) if way == "compiled" else model
        yield {
            "what": f"Hugging Face, {way}",
            "setting": f"{length} x {batch}",
            **_hf_speed(model, called, windows, shape, device, length=length, batch=batch),
        }


def _hf_speed(
    model: torch.nn.Module,
    called: Callable[..., object],
    windows: Windows,
    shape: LlamaShape,
    device: torch.device,
    *,
    length: int,
    batch: int,
) -> Row:
    gc.collect()  # memory left by the previous method must not count for this one
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=device.type == "cuda")
    losses: list[Tensor] = []

    def step() -> None:
        first = len(losses) * batch
        rows = [(first + i) % len(windows) for i in range(batch)]
        tokens = windows.batch(torch.tensor(rows).numpy())[0].to(device)
        loss: Tensor = called(input_ids=tokens, labels=tokens).loss  # type: ignore[attr-defined]  # theirs
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.detach())

    with sdpa_kernel(ATTENTION, set_priority=True):
        for _ in range(WARM):
            step()
        took_s = _seconds(step, device, TIMED)
    tokens_per_s = batch * length / took_s
    return {
        "tokens_per_s": tokens_per_s,
        "flops_per_s": tokens_per_s * shape.flops_per_token(length),
        "peak_device_bytes": torch.cuda.max_memory_allocated() if device.type == "cuda" else None,
        "first_loss": float(losses[0]),
        "last_loss": float(losses[-1]),
    }


def _seconds(call: Callable[[], object], device: torch.device, times: int) -> float:
    """Seconds per call, measured after the device has finished all calls."""
    call()
    _wait(device)
    started_s = monotonic_s()
    for _ in range(times):
        call()
    _wait(device)
    return (monotonic_s() - started_s) / times


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("part", choices=("text", "kernels", "ceiling", "hf"))
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--text", type=Path)
    parser.add_argument("--model", default="llama_v3_1b")
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--words", type=int, default=16_000)
    parser.add_argument("--size", type=int, default=8192)
    parser.add_argument("--eager-only", action="store_true")
    options = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    shape = SHAPES[options.model]
    if options.part == "text":
        rows = iter([train_tokenizer(options.text, options.work, options.words)])
    elif options.part == "kernels":
        rows = kernels(device)
    elif options.part == "ceiling":
        rows = iter([ceiling(device, options.size)])
    else:
        rows = hf(
            shape,
            options.work,
            device,
            length=options.length,
            batch=options.batch,
            compiles=not options.eager_only,
        )
    for row in rows:
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
