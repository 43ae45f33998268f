"""Probe script: runs in the image's own Python and prints the facts of the image as one line of JSON.

It imports the standard library only and runs on any Python from 3.8 on. It reports facts and judges nothing.
Other output goes to stderr. Imports are tried in a child process, so that a crash is reported and does not
end the probe.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata as metadata
import json
import os
import platform
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any, Callable, Dict  # noqa: UP035

_NOT_OURS = {"test", "tests", "docs", "doc", "examples", "example", "benchmarks", "scripts", "tools"}
Json = Dict[str, Any]  # noqa: UP006 - Python 3.8 reads this line. Any: what json knows
Send = Callable[[Json], None]
_LEVELS = ("quick", "standard", "full")


def main() -> None:
    options = json.loads(sys.argv[1])
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # a module that prints at import must not spoil the answer
    facts = facts_of(options)
    answer.write("\n" + json.dumps(facts) + "\n")
    answer.close()


def facts_of(options: Json) -> Json:
    depth = _LEVELS.index(options["level"])
    installed = distributions()
    names = options["requirements"] or roots(installed)
    known = {normal(package["name"]): package for package in installed}
    facts: Json = {
        "python": platform.python_version(),
        "executable": sys.executable,
        "machine": platform.machine(),
        "libc": " ".join(platform.libc_ver()),
        "uid": os.getuid(),
        "markers": markers(),
        "distributions": installed,
        "missing": [name for name in names if normal(name) not in known],
        "imports": imports([known[normal(name)] for name in names if normal(name) in known]),
        "torch": None,
        "shm_bytes": None,
        "task": [],
    }
    if depth >= 1:
        facts["shm_bytes"] = shm_bytes()
        if "torch" in known:
            facts["torch"] = in_child(torch_facts)
        if options["task"] is not None:
            facts["task"] = task_facts(options, whole=depth >= 2)
    return facts


def normal(name: str) -> str:
    out = name.lower()
    for sign in "_.":
        out = out.replace(sign, "-")
    return out


def distributions() -> list[Json]:
    by_name: dict[str, Json] = {}
    for distribution in metadata.distributions():
        name = distribution.metadata["Name"]
        if name and normal(name) not in by_name:
            # The first on the path is the one that is imported.
            by_name[normal(name)] = {
                "name": name,
                "version": distribution.version,
                "requires": list(distribution.requires or []),
                "modules": modules_of(distribution),
            }
    return [by_name[name] for name in sorted(by_name)]


def modules_of(distribution: metadata.Distribution) -> list[str]:
    listed = distribution.read_text("top_level.txt")
    names = set(listed.split()) if listed else {modules_name(str(file)) for file in distribution.files or []}
    own = distribution.metadata["Name"].replace("-", "_")
    if own in names:
        return [own]  # what else it brings is its own business
    return sorted(n for n in names if n.isidentifier() and not n.startswith("_") and n not in _NOT_OURS)


def modules_name(path: str) -> str:
    """`pkg/__init__.py` and `one.py` are modules; data, scripts and folders without a module are none."""
    parts = path.split("/")
    if len(parts) == 1 and (path.endswith(".py") or ".so" in path):
        return parts[0].split(".")[0]
    if len(parts) == 2 and parts[1] == "__init__.py":
        return parts[0]
    return ""


def roots(installed: list[Json]) -> list[str]:
    """The packages that no other package requires: these were requested, as far as metadata shows."""
    required: set[str] = set()
    for package in installed:
        for need in package["requires"]:
            if "extra ==" not in need:
                required.add(normal(requirement_name(need)))
    tools = {"pip", "setuptools", "wheel"}
    return [package["name"] for package in installed if normal(package["name"]) not in required | tools]


def requirement_name(need: str) -> str:
    out = ""
    for sign in need.strip():
        if not (sign.isalnum() or sign in "-_."):
            break
        out += sign
    return out


def imports(chosen: list[Json]) -> list[Json]:
    pending = [
        (distribution["name"], module) for distribution in chosen for module in distribution["modules"]
    ]
    rows: list[Json] = []
    while pending:
        results, how = forked(functools.partial(import_all, modules=pending))
        rows += results
        pending = pending[len(results) :]
        if pending:  # it took the child with it, by a crash or by os._exit
            name, module = pending.pop(0)
            rows.append(row(name, module, how or "it exited Python during the import", 0.0))
    return rows


def import_all(send: Send, modules: list[tuple[str, str]]) -> None:
    for name, module in modules:
        started_s = time.perf_counter()
        error = None
        try:
            importlib.import_module(module)
        except BaseException as caught:  # a module may even exit
            error = last_line(caught)
        send(row(name, module, error, time.perf_counter() - started_s))


def row(name: str, module: str, error: str | None, seconds: float) -> Json:
    return {"name": name, "module": module, "error": error, "seconds": round(seconds, 3)}


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


def in_child(body: Callable[[], Json]) -> Json:
    def send_result(send: Send) -> None:
        try:
            send({"told": body()})
        except BaseException as caught:
            send({"told": {"error": last_line(caught)}})

    results, how = forked(send_result)
    return results[0]["told"] if results else {"error": how or "it ended without output"}


def markers() -> dict[str, str]:
    return {
        "implementation_name": sys.implementation.name,
        "implementation_version": platform.python_version(),
        "os_name": os.name,
        "platform_machine": platform.machine(),
        "platform_release": platform.release(),
        "platform_system": platform.system(),
        "platform_version": platform.version(),
        "python_full_version": platform.python_version(),
        "platform_python_implementation": platform.python_implementation(),
        "python_version": ".".join(platform.python_version_tuple()[:2]),
        "sys_platform": sys.platform,
        "extra": "",
    }


def shm_bytes() -> int:
    try:
        stat = os.statvfs("/dev/shm")
    except OSError:
        return 0
    return stat.f_frsize * stat.f_blocks


def torch_facts() -> Json:
    torch = importlib.import_module("torch")
    facts: Json = {
        "error": None,
        "version": torch.__version__,
        "cuda": torch.version.cuda,
        "hip": getattr(torch.version, "hip", None),
        "arch": attempt(lambda: (torch._C._cuda_getArchFlags() or "").split()) or [],
        "cudnn": attempt(torch.backends.cudnn.version),
        "nccl": attempt(lambda: ".".join(str(part) for part in torch.cuda.nccl.version())),
        "gpus": attempt(lambda: [torch.cuda.get_device_name(n) for n in range(torch.cuda.device_count())])
        or [],
        "numpy_bridge": attempt_error(numpy_bridge),
        "vision_ops": attempt_error(vision_ops),
    }
    facts["loaded"] = loaded_libraries()
    return facts


def attempt(body: Callable[[], Any]) -> Any:
    try:
        return body()
    except BaseException:
        return None


def attempt_error(body: Callable[[], None]) -> str | None:
    """None: it works, or is not there; else what it says."""
    try:
        body()
    except ModuleNotFoundError as missing:
        return None if missing.name in ("numpy", "torchvision") else last_line(missing)
    except BaseException as caught:
        return last_line(caught)
    return None


def numpy_bridge() -> None:
    numpy = importlib.import_module("numpy")
    torch = importlib.import_module("torch")
    torch.from_numpy(numpy.zeros(2, dtype="float32")).numpy()


def vision_ops() -> None:
    importlib.import_module("torchvision")
    torch = importlib.import_module("torch")
    torch.ops.torchvision.nms(torch.zeros(1, 4), torch.zeros(1), 0.5)


def loaded_libraries() -> dict[str, list[str]]:
    """Which files of cuDNN and NCCL are in memory: two of one kind fight."""
    libraries: dict[str, set[str]] = {"cudnn": set(), "nccl": set()}
    with Path("/proc/self/maps").open() as maps:
        for line in maps:
            path = line.rstrip().split(" ")[-1]
            base = path.rpartition("/")[2]
            if base.startswith("libcudnn.so"):
                libraries["cudnn"].add(path)
            if base.startswith("libnccl.so"):
                libraries["nccl"].add(path)
    return {name: sorted(paths) for name, paths in libraries.items()}


def task_facts(options: Json, *, whole: bool) -> list[Json]:
    """Configuration, model, forward and backward pass of a paceline task, as far as it goes."""

    def body(send: Send) -> None:
        state: Json = {}
        parts: list[tuple[str, Callable[[Json, Json], str]]] = [
            ("configuration", configure),
            ("instantiation", instantiate),
        ]
        if whole:
            parts += [("forward", forward), ("backward", backward)]
        for name, part in parts:
            started_s = time.perf_counter()
            try:
                detail = part(options, state)
                error = None
            except BaseException as caught:
                detail = ""
                error = last_line(caught)
            seconds = round(time.perf_counter() - started_s, 3)
            send({"part": name, "detail": detail, "error": error, "seconds": seconds})
            if error is not None:
                return

    rows, how = forked(body)
    if how:
        rows.append({"part": "task", "detail": "", "error": how, "seconds": 0.0})
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


if __name__ == "__main__":
    main()
