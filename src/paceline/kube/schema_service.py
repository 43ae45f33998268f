"""Which fields has a Service, of those that a job needs? Core v1, closed, as data."""

from paceline.kube.schema import Fields, ListOf, PortOrName, Text, Whole, YesNo
from paceline.kube.schema_labels import LABELS
from paceline.kube.schema_pod import METADATA, PORT
from paceline.kube.words import DNS_LABEL, LONGEST_LABEL

SERVICE = Fields(
    {
        "apiVersion": Text(choices=("v1",)),
        "kind": Text(choices=("Service",)),
        "metadata": METADATA,
        "spec": Fields(
            {
                "type": Text(choices=("ClusterIP", "NodePort", "LoadBalancer")),
                "selector": LABELS,
                "clusterIP": Text(),
                "publishNotReadyAddresses": YesNo(),
                "ports": ListOf(
                    Fields(
                        {
                            "name": Text(pattern=DNS_LABEL, longest=LONGEST_LABEL),
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
    },
    ("apiVersion", "kind", "metadata", "spec"),
)
