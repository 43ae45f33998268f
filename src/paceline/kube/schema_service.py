"""Fields of a Service: core v1 of Kubernetes, closed, as data."""

from paceline.kube.schema import Anything, Fields, ListOf, PortOrName, Text, Whole, YesNo
from paceline.kube.schema_job import kind
from paceline.kube.schema_labels import LABELS
from paceline.kube.schema_pod import LABEL_NAME, METADATA, PORT

SERVICE = kind(
    "v1",
    "Service",
    METADATA,
    Fields(
        {
            "allocateLoadBalancerNodePorts": YesNo(),
            "clusterIPs": ListOf(Text()),
            "externalIPs": ListOf(Text()),
            "externalName": Text(),
            "externalTrafficPolicy": Text(choices=("Cluster", "Local")),
            "healthCheckNodePort": Whole(),
            "internalTrafficPolicy": Text(choices=("Cluster", "Local")),
            "ipFamilies": ListOf(Text(choices=("IPv4", "IPv6"))),
            "ipFamilyPolicy": Text(choices=("SingleStack", "PreferDualStack", "RequireDualStack")),
            "loadBalancerClass": Text(),
            "loadBalancerIP": Text(),
            "loadBalancerSourceRanges": ListOf(Text()),
            "sessionAffinity": Text(choices=("None", "ClientIP")),
            "sessionAffinityConfig": Anything(),
            "trafficDistribution": Text(),
            "type": Text(choices=("ClusterIP", "NodePort", "LoadBalancer", "ExternalName")),
            "selector": LABELS,
            "clusterIP": Text(may_be_empty=True),
            "publishNotReadyAddresses": YesNo(),
            "ports": ListOf(
                Fields(
                    {
                        "appProtocol": Text(),
                        "name": LABEL_NAME,
                        "port": PORT,
                        "targetPort": PortOrName(),
                        "nodePort": Whole(least=30000, most=32767),
                        "protocol": Text(choices=("TCP", "UDP", "SCTP")),
                    },
                    ("port",),
                ),
            ),
        },
    ),
)
