"""Probe script: runs in the image's own Python and prints the facts of the image as one line of JSON.

It imports the standard library only and runs on any Python from 3.8 on; `model_script.py` is sent with it, as
one file (`container.py`). It reports facts and judges nothing. Other output goes to stderr. Imports are tried
in a child process, so that a crash is reported and does not end the probe.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata as metadata
import json
import os
import platform
import sys
import time
from pathlib import Path
from typing import Any, Callable  # noqa: UP035

from paceline.images.probe.model_script import Json, Send, forked, last_line, model_rows

_NOT_OURS = {"test", "tests", "docs", "doc", "examples", "example", "benchmarks", "scripts", "tools"}
_LEVELS = ("smoke", "quick", "standard", "full")


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
    names = options["requirements"] or (roots(installed) if depth > 0 else [])
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
        "model": [],
    }
    if depth >= 2:
        facts["shm_bytes"] = shm_bytes()
        if "torch" in known:
            facts["torch"] = in_child(torch_facts)
        facts["model"] = model_rows(options, whole=depth >= 3)
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


if __name__ == "__main__":
    main()
