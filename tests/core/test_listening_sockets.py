"""Every place in the code that opens a listening socket is known, with who may reach it and what it asks for.

What runs on hosts really opens is compared with such a list in tests/hosts/test_strangers.py.
"""

import ast
from collections import Counter
from pathlib import Path

import paceline

LOOPBACK = "only on loopback"
PROBE = "closed at once: is the port free, or which address has this machine"
TRUSTS = "trusts its network (docs/concepts/security.md)"
OPENERS = frozenset(
    {
        *("create_server", "start_server", "start_unix_server", "add_secure_port", "add_insecure_port"),
        *("bind", "listen", "ThreadingHTTPServer", "TCPStore", "ProcessGroupGloo", "init_process_group"),
    }
)
KNOWN = {
    "cli/dashboard.py": [PROBE],
    "coordinator/admin/launch.py": [PROBE],
    "coordinator/server/security.py": ["a client certificate", "a token, only on loopback"],
    "coordinator/server/server.py": ["as in security.py"],
    "coordinator/torchft/proxy.py": ["only on loopback, unless --open-to-network: torchft has no proof"],
    "dashboard/server.py": ["a token"],
    "doctor/probes.py": [PROBE, PROBE],
    "faults/hosts/delay_line.py": ["no network: a queue of the kernel"],
    "faults/scenarios/coordinator_nodes.py": [LOOPBACK],
    "images/probe/model_script.py": ["no socket: the arguments of a function"],
    "k8s/submit/follow.py": ["no socket: subscribes to changes"],
    "launchers/agents/hosted_run.py": ["no network: a socket in a private folder", "the same"],
    "launchers/agents/hub.py": ["TLS, and the secret of the offer"],
    "launchers/ray/local_cluster.py": [PROBE],
    "launchers/ray/resources.py": [PROBE],
    "monitoring/metrics/http_server.py": ["a token, beyond loopback"],
    "transport/handshake.py": ["the run's secret, and TLS beyond loopback"],
    "transport/rendezvous_store.py": [TRUSTS, TRUSTS, TRUSTS],
    "transport/torch_dist.py": [TRUSTS, TRUSTS, "no socket: one process"],
    "worker/entry/ray.py": ["the run's secret, and TLS beyond loopback"],
    "worker/entry/torch_baseline.py": ["gloo, on loopback"],
    "worker/entry/torchrun_leader.py": [LOOPBACK],
    "worker/entry/zygote.py": [LOOPBACK],
}


def test_every_place_that_listens_is_known() -> None:
    root = Path(paceline.__file__).parent
    opened = Counter(
        path.relative_to(root).as_posix()
        for path in root.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and _name(node.func) in OPENERS
    )
    expected = {path: len(proofs) for path, proofs in KNOWN.items()}
    assert dict(opened) == expected, "say in KNOWN what the new socket asks for, and attack it in tests/hosts"


def _name(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
