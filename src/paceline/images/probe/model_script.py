"""Models in an image: the second half of the probe script, which `container.py` puts before the first.

A task of paceline, or the user's own function or script, is configured, made and run in a child process, so
that a crash is reported. For Python 3.8 and newer, and the standard library only, as `script.py`.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import json
import os
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import Any, Callable, Dict, List, Tuple  # noqa: UP035

Json = Dict[str, Any]  # noqa: UP006 - Python 3.8 reads this line. Any: what json knows
Send = Callable[[Json], None]
Parts = List[Tuple[str, Callable[[Json, Json], str]]]  # noqa: UP006
# As torchrun sets them for one process, for scripts that read them.
_ONE_PROCESS = {
    "RANK": "0",
    "WORLD_SIZE": "1",
    "LOCAL_RANK": "0",
    "LOCAL_WORLD_SIZE": "1",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "29500",
}


def last_line(caught: BaseException) -> str:
    return "".join(traceback.format_exception_only(type(caught), caught)).strip()[:2000]


def forked(body: Callable[[Send], None]) -> tuple[list[Json], str | None]:
    """What `body` tells, object by object, from a child; and how the child died, if it did."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read_end)
        with os.fdopen(write_end, "w") as out:

            def send(row: Json) -> None:
                out.write(json.dumps(row) + "\n")
                out.flush()

            try:
                body(send)
            finally:
                out.flush()
                os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end) as lines:
        results = [json.loads(line) for line in lines if line.endswith("\n")]
    _, status = os.waitpid(child, 0)
    how = "crashed: " + signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else None
    return results, how


def model_rows(options: Json, *, whole: bool) -> list[Json]:
    """A row for each part of the task or of the entry, as far as they go; the first two if not whole."""
    entry = options["entry"]
    if entry is None:
        return [] if options["task"] is None else run_parts(options, TASK_PARTS, whole=whole)
    return [run_script(entry)] if entry["function"] is None else run_parts(entry, ENTRY_PARTS, whole=whole)


def run_parts(options: Json, parts: Parts, *, whole: bool) -> list[Json]:
    """Each part in turn, up to the first that fails."""

    def body(send: Send) -> None:
        state: Json = {}
        for name, part in parts if whole else parts[:2]:
            started_s = time.perf_counter()
            try:
                detail = part(options, state)
                error = None
            except BaseException as caught:
                detail = ""
                error = last_line(caught)
            seconds = round(time.perf_counter() - started_s, 3)
            if detail or error is not None:
                send({"part": name, "detail": detail, "error": error, "seconds": seconds})
            if error is not None:
                return

    rows, how = forked(body)
    if how:
        rows.append({"part": "process", "detail": "", "error": how, "seconds": 0.0})
    return rows


def configure(options: Json, state: Json) -> str:
    load = importlib.import_module("paceline.tasks.load")
    state["torch"] = importlib.import_module("torch")
    state["torch"].manual_seed(0)
    state["task"] = load.load_task(options["task"], seed=0, options=options["task_options"])
    return f"task {options['task']}"


def instantiate(_request: Json, state: Json) -> str:
    device = "cuda" if state["torch"].cuda.is_available() else "cpu"
    state["model"] = state["task"].model().to(device)
    state["device"] = device
    count = sum(p.numel() for p in state["model"].parameters())
    return f"{count} parameters on {device}"


def forward(options: Json, state: Json) -> str:
    samples = importlib.import_module("paceline.tasks.torch_adapters").samples_of(state["task"])
    size = min(options["batch_size"], len(samples))
    port = importlib.import_module("paceline.tasks.port")
    numpy = importlib.import_module("numpy")
    batch = port.to_device(samples.batch(numpy.arange(size)), state["torch"].device(state["device"]))
    state["loss"] = state["task"].loss(state["model"], batch)
    value = float(state["loss"].detach())
    if value != value or value in (float("inf"), float("-inf")):
        raise ValueError(f"the loss of the first batch is {value!r}")
    return f"loss {value:.4f} of {size} samples"


def backward(_request: Json, state: Json) -> str:
    state["loss"].backward()
    grads = [p.grad for p in state["model"].parameters() if p.grad is not None]
    if not grads:
        raise ValueError("no parameter has a gradient")
    norm = float(sum(float((grad.double() ** 2).sum()) for grad in grads)) ** 0.5
    if norm != norm or norm == float("inf"):
        raise ValueError(f"the gradient norm is {norm!r}")
    return f"gradient norm {norm:.4f} in {len(grads)} tensors"


TASK_PARTS: Parts = [
    ("configuration", configure),
    ("instantiation", instantiate),
    ("forward", forward),
    ("backward", backward),
]


def run_script(entry: Json) -> Json:
    started_s = time.perf_counter()
    program = [sys.executable] if entry["place"].endswith(".py") else []
    error = None
    try:
        done = subprocess.run(
            [*program, entry["place"], *entry["arguments"]],
            env={**_ONE_PROCESS, **os.environ},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )
    except OSError as failed:
        error = last_line(failed)
    else:
        if done.returncode != 0:
            error = f"exit code {done.returncode}: {done.stdout.decode('utf-8', 'replace').strip()[-2000:]}"
    seconds = round(time.perf_counter() - started_s, 3)
    words = " ".join([entry["place"], *entry["arguments"]])
    return {"part": "script", "detail": f"{words} ended with 0", "error": error, "seconds": seconds}


def entry_configure(entry: Json, state: Json) -> str:
    """Import the function, and check that it takes the options."""
    place = entry["place"]
    if place.endswith(".py"):
        spec = importlib.util.spec_from_file_location(Path(place).stem, place)
        if spec is None or spec.loader is None:
            raise ImportError(f"{place} is not a Python file")
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        sys.path.insert(0, str(Path(place).resolve().parent))
        spec.loader.exec_module(module)
    else:
        module = importlib.import_module(place)
    function: Any = module
    for name in entry["function"].split("."):
        function = getattr(function, name)
    inspect.signature(function).bind(**entry["options"])
    state["function"] = function
    given = "".join(f", {name}={value!r}" for name, value in entry["options"].items())
    return f"{place}:{entry['function']}{given}"


def entry_instantiate(entry: Json, state: Json) -> str:
    """The function returns a model, or a model and the inputs of a forward pass."""
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)
    result = state["function"](**entry["options"])
    has_inputs = isinstance(result, tuple) and len(result) == 2
    model = result[0] if has_inputs else result
    if not callable(model):
        raise TypeError(
            f"{entry['function']} returned {type(model).__name__}: return a model, or (model, inputs)"
        )
    torch: Any = sys.modules.get("torch")  # the function may have imported it
    is_torch = torch is not None and isinstance(model, torch.nn.Module)
    device = "cuda" if is_torch and torch.cuda.is_available() else "cpu"
    state.update(model=model.to(device) if is_torch else model, device=device, torch=torch, is_torch=is_torch)
    if has_inputs:
        state["inputs"] = result[1]
    if not is_torch:
        return type(model).__name__
    count = sum(p.numel() for p in model.parameters())
    kind = getattr(getattr(model, "config", None), "model_type", None)
    return f"{type(model).__name__}{f' ({kind})' if kind else ''}, {count} parameters on {device}"


def entry_forward(entry: Json, state: Json) -> str:
    if "inputs" in state:
        inputs = state["inputs"]
    elif entry["inputs"]:
        inputs = tuple(sample_input(one, state) for one in entry["inputs"])
    else:
        raise ValueError("no inputs for the forward pass: return (model, inputs), or give --input 8x3x32x32")
    if state["is_torch"]:
        inputs = moved(inputs, state)
    if isinstance(inputs, dict):
        output = state["model"](**inputs)
    else:
        output = state["model"](*(inputs if isinstance(inputs, (tuple, list)) else (inputs,)))
    state["output"] = output
    tensors = tensors_in(output, state)
    for tensor in tensors:
        if tensor.is_floating_point() and not bool(state["torch"].isfinite(tensor).all()):
            raise ValueError("the output is not finite")
    shapes = ", ".join("x".join(map(str, t.shape)) or "scalar" for t in tensors[:3])
    return f"output {shapes}" if shapes else f"output {type(output).__name__}"


def sample_input(one: Json, state: Json) -> Any:
    """Random numbers of this shape and type; zeros where the type is an integer, as a token id may be."""
    if state["torch"] is None:
        numpy = importlib.import_module("numpy")
        return numpy.zeros(one["shape"], dtype=one["dtype"])
    torch = state["torch"]
    dtype = getattr(torch, one["dtype"])
    return (
        torch.randn(one["shape"]).to(dtype)
        if dtype.is_floating_point
        else torch.zeros(one["shape"], dtype=dtype)
    )


def moved(inputs: Any, state: Json) -> Any:
    if isinstance(inputs, state["torch"].Tensor):
        return inputs.to(state["device"])
    if isinstance(inputs, (tuple, list)):
        return [moved(one, state) for one in inputs]
    if hasattr(inputs, "items"):
        return {name: moved(one, state) for name, one in inputs.items()}
    return inputs


def tensors_in(output: Any, state: Json) -> list[Any]:
    """Tensors of torch in an output, in order; none for another framework."""
    if state["torch"] is None:
        return []
    if isinstance(output, state["torch"].Tensor):
        return [output]
    if hasattr(output, "values") and callable(output.values):
        output = list(output.values())
    if isinstance(output, (tuple, list)):
        return [tensor for one in output for tensor in tensors_in(one, state)]
    return []


def entry_backward(_entry: Json, state: Json) -> str:
    """Nothing for a model of another framework, and for one whose parameters are all frozen."""
    if not state["is_torch"] or not any(p.requires_grad for p in state["model"].parameters()):
        return ""
    loss = getattr(state["output"], "loss", None)
    if loss is None:
        means = [t.float().mean() for t in tensors_in(state["output"], state) if t.requires_grad]
        if not means:
            raise ValueError("no output depends on the parameters")
        loss = sum(means)
    return backward({}, {**state, "loss": loss})


ENTRY_PARTS: Parts = [
    ("configuration", entry_configure),
    ("instantiation", entry_instantiate),
    ("forward", entry_forward),
    ("backward", entry_backward),
]
