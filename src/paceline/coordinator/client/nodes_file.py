"""The file cluster.json: the nodes of a coordinator group that runs on this machine."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from paceline.core.disk import write_durably
from paceline.core.errors import ClusterOptionError, Problem

FILE_NAME = "cluster.json"
KILLS_NAME = "kills.jsonl"  # nodes killed by `paceline coordinator kill`, and the leader at that time
SCHEMA = "paceline.cluster/1"
_HINT = "use --at HOST:PORT, set PACELINE_COORDINATOR, or start a cluster with `paceline coordinator up`"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodesFile:
    cluster: str
    nodes: Mapping[int, str]

    def write(self, folder: Path) -> None:
        nodes = {str(node): address for node, address in self.nodes.items()}
        content = {"schema": SCHEMA, "cluster": self.cluster, "nodes": nodes}
        write_durably(folder / FILE_NAME, [(json.dumps(content, indent=2) + "\n").encode()])


def read_nodes_file(folder: Path) -> NodesFile:
    path = folder / FILE_NAME
    if not path.exists():
        message = f"no coordinator address is given, and there is no {path}"
        raise ClusterOptionError([Problem(message, _HINT, "--dir")])
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["schema"] != SCHEMA:
            raise ValueError(f"its schema is {content['schema']!r}")
        nodes = {int(node): str(address) for node, address in content["nodes"].items()}
        if not nodes or not all(map(is_address, nodes.values())):
            raise ValueError("it names no nodes")
        return NodesFile(cluster=str(content["cluster"]), nodes=nodes)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        message = f"{path} does not describe a cluster: {error}"
        raise ClusterOptionError([Problem(message, _HINT, "--dir")]) from error


def pid_file(folder: Path, node: int) -> Path:
    """The file with the process id of a node that `up` started."""
    return folder / f"node-{node}.pid"


def is_address(text: str) -> bool:
    host, _, port = text.rpartition(":")
    return bool(host) and port.isdecimal() and int(port) < 1 << 16
