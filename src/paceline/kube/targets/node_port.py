"""How is a Ray head reached from outside of the cluster? A Service at ports of every node."""

from paceline.kube.intent import Intent
from paceline.kube.parts import Object, metadata
from paceline.kube.targets.raycluster import CLIENT, DASHBOARD
from paceline.plan.codec import Json

DASHBOARD_NODE_PORT, CLIENT_NODE_PORT = 30265, 30001
SUFFIX = "-node-port"


def render(intent: Intent) -> Object:
    ports: list[Json] = [
        {"name": "dashboard", "port": DASHBOARD, "targetPort": DASHBOARD, "nodePort": DASHBOARD_NODE_PORT},
        {"name": "client", "port": CLIENT, "targetPort": CLIENT, "nodePort": CLIENT_NODE_PORT},
    ]
    head: Object = {"app.kubernetes.io/instance": intent.name, "ray.io/node-type": "head"}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(intent, intent.name + SUFFIX),
        "spec": {"type": "NodePort", "selector": head, "ports": ports},
    }
