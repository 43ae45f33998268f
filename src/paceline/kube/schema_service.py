"""Which fields has a Service, of those that a job needs? Core v1, closed, as data."""

from paceline.kube.schema import Fields, ListOf, PortOrName, Text, Whole, YesNo
from paceline.kube.schema_job import kind
from paceline.kube.schema_labels import LABELS
from paceline.kube.schema_pod import LABEL_NAME, METADATA, PORT

SERVICE = kind(
    "v1",
    "Service",
    METADATA,
    Fields(
        {
            "type": Text(choices=("ClusterIP", "NodePort", "LoadBalancer")),
            "selector": LABELS,
            "clusterIP": Text(),
            "publishNotReadyAddresses": YesNo(),
            "ports": ListOf(
                Fields(
                    {
                        "name": LABEL_NAME,
                        "port": PORT,
                        "targetPort": PortOrName(),
                        "nodePort": Whole(least=30000, most=32767),
                        "protocol": Text(choices=("TCP", "UDP", "SCTP")),
                    },
                    ("port",),
                ),
                1,
            ),
        },
        ("ports",),
    ),
)
