"""How do containers run a cluster? A compose file: one service for each node, and no secret in it.

Each container sees its own certificate and key, read-only, and never the
authority's key. What it writes goes to a volume of its own.
"""

import os
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.app.cluster_up import start_command
from paceline.coordinator.cluster_file import ClusterFile
from paceline.errors import CannotWriteError

if TYPE_CHECKING:
    from paceline.plan.codec import Json

PORT = 7400
DATA, PKI = "/data", "/pki"
_HEADER = """\
# Written by `paceline coordinator up --compose`. Start it with `docker compose -f {name} up -d`.
# The image needs `paceline` on its path, and a user that may write to {data} and read the keys below.
"""


def write_compose(path: Path, nodes: int, image: str, tls_dir: Path) -> None:
    import yaml

    text = _HEADER.format(name=path.name, data=DATA)
    text += yaml.safe_dump(compose(path.parent, nodes, image, tls_dir), sort_keys=False, width=200)
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise CannotWriteError(
            f"cannot write {path}: {error.strerror}", "name a file where this user may write"
        ) from error


def pki_command(nodes: int, tls_dir: Path) -> str:
    """What makes the certificates that the file mounts."""
    named = " ".join(f"--node {number}={_name(number)}" for number in range(1, nodes + 1))
    return f"paceline coordinator init-pki --out {tls_dir} {named}"


def compose(base: Path, nodes: int, image: str, tls_dir: Path) -> dict[str, "Json"]:
    """The file's content; paths in it are relative to `base`."""
    numbers = range(1, nodes + 1)
    cluster = ClusterFile(cluster="paceline", nodes={n: f"{_name(n)}:{PORT}" for n in numbers})
    keys = Path(os.path.relpath(tls_dir, base))
    services: dict[str, Json] = {_name(n): _service(n, cluster, image, keys) for n in numbers}
    volumes: dict[str, Json] = {f"data-{n}": {} for n in numbers}
    return {"name": cluster.cluster, "services": services, "volumes": volumes}


def _service(number: int, cluster: ClusterFile, image: str, keys: Path) -> "Json":
    start = start_command(number, cluster, DATA, ["--tls-dir", PKI], listen=f"0.0.0.0:{PORT}")
    status = ["coordinator", "status", "--only", "--at", cluster.nodes[number], "--tls-dir", PKI]
    mounts: list[Json] = [{"type": "volume", "source": f"data-{number}", "target": DATA}]
    for name in ("ca.crt", f"{_name(number)}.crt", f"{_name(number)}.key"):
        mounts.append(_mount(keys / name, f"{PKI}/{name}"))
    health: dict[str, Json] = {
        "test": ["CMD", "paceline", *status, "--tls-name", _name(number)],
        "interval": "10s",
        "timeout": "10s",
        "retries": 3,
        "start_period": "10s",
    }
    return {
        "image": image,
        "hostname": _name(number),
        "entrypoint": ["paceline"],
        "command": list(start),
        "restart": "unless-stopped",
        "stop_grace_period": "15s",
        "read_only": True,
        "tmpfs": ["/tmp"],
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges:true"],
        "volumes": mounts,
        "healthcheck": health,
    }


def _mount(source: Path, target: str) -> "Json":
    text = str(source) if source.is_absolute() else f"./{source}"
    bind: dict[str, Json] = {"create_host_path": False}  # a missing key is an error, not an empty folder
    return {"type": "bind", "source": text, "target": target, "read_only": True, "bind": bind}


def _name(number: int) -> str:
    return f"node-{number}"
