"""Which commands exist? One row each; a command's module is imported only when it runs."""

# name: (module, attribute that holds the click command, help in one line)
COMMANDS: dict[str, tuple[str, str, str]] = {
    "train": ("paceline.cli.train", "train", "Train a task with many workers."),
    "compare": (
        "paceline.cli.compare",
        "compare",
        "Train one task under several modes, and report which was worth it.",
    ),
    "benchmark": (
        "paceline.cli.benchmark",
        "benchmark",
        "Train one model alone and distributed, by us and by others, and compare.",
    ),
    "tune": ("paceline.cli.tune", "tune", "Search hyper-parameters with Ray Tune, and save the best."),
    "report": ("paceline.cli.report", "report", "Make one page of finished runs, or of a comparison."),
    "demo": ("paceline.cli.demo", "demo", "Compare every mode on XOR with one slow worker."),
    "learn": (
        "paceline.cli.learn",
        "learn",
        "Learn distributed training by breaking it: 8 parts, 75 minutes.",
    ),
    "laws": ("paceline.cli.laws", "laws", "Prove that a mode, or your own, does what it says."),
    "replay": ("paceline.cli.replay", "replay", "Execute a recorded run again, bit by bit."),
    "verify": ("paceline.cli.verify", "verify", "Prove that a run lost nothing and did nothing twice."),
    "checkpoint": (
        "paceline.cli.checkpoint",
        "checkpoint",
        "Look at a run's checkpoints, check them, and take the weights out.",
    ),
    "export": (
        "paceline.cli.export",
        "export",
        "Write a finished run's record for TensorBoard, MLflow or W&B.",
    ),
    "plan": ("paceline.cli.plan", "plan", "Say what train would do, and start nothing."),
    "simulate": ("paceline.cli.simulate", "simulate", "Predict every mode on equal work, and start nothing."),
    "advise": ("paceline.cli.advise", "advise", "Rank the modes for a recorded run, and say why."),
    "data": (
        "paceline.cli.data",
        "data",
        "Get the data of built-in tasks, make it ready, bring it to a cluster.",
    ),
    "status": ("paceline.cli.status", "status", "Say how a run is: state, pace, workers, alerts, health."),
    "events": ("paceline.cli.events", "events", "Tell what happened in a run, and what happens."),
    "top": ("paceline.cli.top", "top", "Watch a run's workers on the whole terminal."),
    "alerts": ("paceline.cli.alerts", "alerts", "See a run's alerts, have them sent, silence them."),
    "metrics": ("paceline.cli.metrics", "metrics", "Give a run's metrics to Prometheus and Grafana."),
    "workers": ("paceline.cli.workers", "workers", "Add workers to a run that is at work, or remove some."),
    "ray": ("paceline.cli.ray", "ray", "Make a small Ray cluster here, and hand runs to a cluster."),
    "job": ("paceline.cli.job", "job", "Write manifests of a job on Kubernetes, check them, explain a job."),
    "cluster": (
        "paceline.cli.cluster",
        "cluster",
        "See which Kubernetes clusters there are, what one is good for, and mend it.",
    ),
    "deploy": ("paceline.cli.deploy", "deploy", "Run the coordinator, or a dashboard, on Kubernetes."),
    "image": ("paceline.cli.image", "image", "Check, build, test and push container images."),
    "dashboard": (
        "paceline.cli.dashboard",
        "dashboard",
        "Watch runs in a browser, live or recorded, and break them there.",
    ),
    "stop": ("paceline.cli.stop", "stop", "Ask a run to stop in good order, with a checkpoint."),
    "lab": ("paceline.cli.lab", "lab", "Break a run on purpose, and see what was promised hold."),
    "coordinator": (
        "paceline.cli.coordinator",
        "coordinator",
        "Run and look after the replicated coordinator.",
    ),
    "lighthouse": (
        "paceline.cli.lighthouse",
        "lighthouse",
        "Give torchft jobs a lighthouse that survives the loss of a node.",
    ),
}
