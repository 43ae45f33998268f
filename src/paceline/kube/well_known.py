"""What do Kubernetes, NVIDIA and Amazon call devices, places and health? Names that several files share."""

GPU = "nvidia.com/gpu"
EFA = "vpc.amazonaws.com/efa"
INSTANCE_TYPE = "node.kubernetes.io/instance-type"
ZONE = "topology.kubernetes.io/zone"
HYPERPOD_HEALTH = "sagemaker.amazonaws.com/node-health-status"
