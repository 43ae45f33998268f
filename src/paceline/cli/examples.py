"""Examples for the help of each command: a line to paste and what it does.

A test parses every example with the real command line and requires one for every command.
"""

# path of the command: pairs of (arguments behind that path, what it does)
EXAMPLES: dict[str, tuple[tuple[str, str], ...]] = {
    "train": (
        ("--mode ssgd --num-workers 2 --steps 10", "Train with two synchronous workers"),
        (
            "--mode ssp --num-workers 4 --straggler worker=1,factor=3",
            "Four workers, one of them three times slower",
        ),
        ("--config train.yaml --set lr=0.05", "Read settings from a file and override one"),
        ("--resume runs/xor-ssgd", "Resume a stopped run"),
        ("--dry-run --mode ssp --num-workers 4", "Show the plan without training"),
    ),
    "run": (
        ("train.py --epochs 3", "One worker, like python train.py --epochs 3, with a record"),
        ("--mode ssgd --num-workers 4 train.py --epochs 3", "Four workers share every batch of the script"),
        (
            "--mode asgd --num-workers 3 --straggler worker=1,factor=3 train.py",
            "Three asynchronous workers, one of them three times slower",
        ),
    ),
    "check": (
        ("train.py --epochs 3", "Which modes suit the script, and why the others do not"),
        ("--num-workers 8 --json train.py", "The same for eight workers, as JSON"),
    ),
    "compare": (
        ("--modes ssgd,asgd,ssp --num-workers 2 --steps 50", "Compare three strategies on equal work"),
        (
            "--modes ssgd,asgd,localsgd --num-workers 4 --target-accuracy 0.9 -- train.py --epochs 5",
            "Compare three strategies for your own training script",
        ),
        (
            "--modes ssgd,localsgd --task digits --repeats 3",
            "Repeat each strategy three times, with confidence intervals",
        ),
    ),
    "benchmark": (
        (
            "torch --num-workers 2 --epochs 1",
            "Compare one process with two, under Paceline and under PyTorch",
        ),
    ),
    "benchmark keras": (
        ("--num-workers 2 --epochs 1 --subset 2000", "Compare Keras on one process with Ray Train"),
    ),
    "benchmark torch": (("--num-workers 2 --epochs 1", "Compare one process with two"),),
    "tune": (("--search lr=log:0.001..1 --trials 4 --steps 20", "Run four trials over the learning rate"),),
    "report": (("runs/xor-ssgd runs/xor-asgd --out report.html", "Compare two finished runs on one page"),),
    "demo": (
        ("", "Compare every strategy on XOR with a straggler (about a minute)"),
        ("--json --run-dir runs/demo", "Print the result as JSON"),
    ),
    "laws": (
        ("--mode ssgd", "Check the laws of a built-in strategy"),
        ("--mode my_mode:Mine --like ssgd", "Check your own strategy against the laws of ssgd"),
    ),
    "replay": (("runs/xor-ssgd", "Re-execute the run and compare every bit"),),
    "verify": (("runs/xor-ssgd", "Check that no step or sample was lost or repeated"),),
    "checkpoint": (("list runs/xor-ssgd", "List the checkpoints of a run"),),
    "checkpoint list": (("runs/xor-ssgd", "List the checkpoints of a run"),),
    "checkpoint now": (("runs/xor-ssgd", "Request a checkpoint from a live run"),),
    "checkpoint verify": (("runs/xor-ssgd", "Verify the checksums of all checkpoints"),),
    "checkpoint export": (("runs/xor-ssgd --out weights.safetensors", "Export the newest weights"),),
    "export": (("runs/xor-ssgd --to tensorboard", "Write TensorBoard event files"),),
    "config": (("show --origin --config train.yaml", "Show each setting and where it was set"),),
    "config show": (
        (
            "--origin --config train.yaml --steps 50",
            "Show each setting and the flag, variable or line that set it",
        ),
        ("--all", "Include defaults"),
    ),
    "config keys": (
        ("", "List all settings"),
        ("staleness", "Describe one setting: flag, variable, values, default"),
    ),
    "simulate": (("--workers 1,2,4,8 --pace 10ms", "Predict every strategy for 1 to 8 workers"),),
    "advise": (("runs/xor-ssgd", "Rank the strategies for the workload of a run"),),
    "data": (("fetch cifar10", "Download CIFAR-10"),),
    "data fetch": (("cifar10 --to data", "Download CIFAR-10 into the folder data"),),
    "data prepare": (("sp500 --csv closes.csv --out sp500.npz", "Convert daily closing prices to samples"),),
    "data prepare sp500": (("--csv closes.csv --out sp500.npz", "Convert daily closing prices to samples"),),
    "data shard": (("charlm corpus.txt --out shards", "Shard a text file"),),
    "data tokens": (("corpus.txt --out tokens", "Tokenize a text file by bytes"),),
    "data upload": (("shards --pvc data --to digits", "Copy a folder to a PersistentVolumeClaim"),),
    "data verify": (("shards", "Verify the checksums of a sharded dataset"),),
    "status": (
        ("", "Show the newest run under runs/"),
        ("runs/xor-ssgd --watch", "Watch the workers in the terminal"),
        ("runs/xor-ssgd --json", "Print the state of a run as JSON"),
    ),
    "events": (
        ("runs/xor-ssgd", "Show the events of a run"),
        ("runs/xor-ssgd --follow --kind supervision", "Follow one kind of event"),
    ),
    "alerts": (("list runs/xor-ssgd --all", "List all rules with their state"),),
    "alerts list": (("runs/xor-ssgd", "List firing and resolved alerts"),),
    "alerts watch": (("runs/xor-ssgd --rules alerts.yaml", "Send notifications while the run trains"),),
    "alerts test": (("webhook --rules alerts.yaml", "Send a test notification"),),
    "alerts silence": (
        ("runs/xor-ssgd --for 10m --rule WorkerStraggling", "Silence one rule for ten minutes"),
    ),
    "alerts export": (("--out rules.yaml", "Write the rules in Prometheus format"),),
    "alerts check": (("alerts.yaml", "Validate a rules file"),),
    "metrics": (("list", "List all metrics"),),
    "metrics list": (("", "List all metrics"),),
    "metrics sample": (("runs/xor-ssgd", "Print the metrics once in Prometheus format"),),
    "metrics serve": (("runs/xor-ssgd --port 9464", "Serve the metrics of a run to Prometheus"),),
    "metrics export-grafana": (("--out grafana", "Write a Grafana dashboard"),),
    "metrics export-rules": (("--out rules.yaml", "Write the alert rules for Prometheus"),),
    "workers": (("list runs/xor-ssgd", "List the workers of a run"),),
    "workers list": (("runs/xor-ssgd", "List the workers of a run"),),
    "workers add": (("runs/xor-ssgd 2 --wait", "Add two workers and wait until they train"),),
    "workers remove": (("runs/xor-ssgd worker-1", "Remove a worker gracefully"),),
    "workers pause": (("runs/xor-ssgd worker-1 --for 10", "Pause a worker for ten seconds"),),
    "workers resume": (("runs/xor-ssgd worker-1", "Resume a paused worker"),),
    "workers slow": (
        ("runs/xor-ssgd worker-1 --factor 4 --for 20", "Slow a worker down by a factor of 4 for 20 s"),
    ),
    "workers kill": (("runs/xor-ssgd worker-1", "Kill a worker with SIGKILL"),),
    "workers partition": (("runs/xor-ssgd worker-1", "Partition a worker from the coordinator"),),
    "workers heal": (("runs/xor-ssgd", "Heal all partitions"),),
    "ray": (("up --nodes 2", "Start a two-node Ray cluster on this machine"),),
    "ray up": (("--nodes 2 --cpus-per-node 2", "Start a two-node Ray cluster on this machine"),),
    "ray down": (("", "Stop the local Ray cluster"),),
    "ray submit": (("--task xor --mode ssgd --num-workers 2", "Submit a run to the cluster"),),
    "ray list": (("", "List the jobs in the cluster"),),
    "ray status": (("raysubmit_1", "Show the status of a job"),),
    "ray logs": (("raysubmit_1 --follow", "Follow the logs of a job"),),
    "ray stop": (("raysubmit_1", "Stop a job"),),
    "job": (("list", "List the jobs in the cluster"),),
    "job render": (
        (
            "--target rayjob --image example.com/x:1 --name demo --task xor --steps 50",
            "Print a RayJob manifest",
        ),
    ),
    "job validate": (("job.yaml", "Validate a manifest"),),
    "job submit": (
        ("job.yaml --namespace train", "Submit a manifest and follow its logs"),
        (
            "--target job --task xor --nodes 2 --image example.com/x:1 --name demo",
            "Submit without a manifest file",
        ),
    ),
    "job attach": (("demo", "Follow a submitted job"),),
    "job list": (("--all-namespaces", "List jobs in all namespaces"),),
    "job status": (("demo", "Show the status of a job"),),
    "job logs": (("demo --rank 1 --tail 50", "Print the last 50 log lines of rank 1"),),
    "job explain": (("demo", "Explain why a job is stuck or failed"),),
    "job results": (("demo --out results", "Download the results of a job"),),
    "job stop": (("demo", "Stop a job"),),
    "cluster": (("check", "Check whether the cluster can run training jobs"),),
    "cluster list": (("", "List the clusters of the kubeconfig"),),
    "cluster check": (("--namespace train", "Check whether the cluster can run training jobs"),),
    "cluster fix": (
        ("--dry-run", "Show what would be fixed"),
        ("--apply", "Apply the fixes (--undo reverts them)"),
    ),
    "cluster deploy": (
        ("render coordinator --namespace train --image example.com/x:1", "Print the manifests"),
    ),
    "cluster deploy render": (
        ("coordinator --namespace train --image example.com/x:1", "Print the manifests"),
    ),
    "cluster deploy render coordinator": (
        ("--namespace train --image example.com/x:1 --replicas 3", "Render a coordinator of three nodes"),
    ),
    "cluster deploy render dashboard": (
        (
            "--namespace train --image example.com/x:1 --claim runs",
            "Serve a dashboard of the runs on a PersistentVolumeClaim",
        ),
    ),
    "cluster deploy render monitoring": (
        (
            "--namespace train --prometheus-image example.com/prometheus:1"
            " --grafana-image example.com/grafana:1 --out monitoring",
            "Write Prometheus and Grafana for the jobs of a namespace",
        ),
    ),
    "cluster deploy apply": (
        ("coordinator --namespace train --image example.com/x:1", "Create the objects in the cluster"),
    ),
    "cluster deploy apply coordinator": (
        (
            "--namespace train --image example.com/x:1 --dry-run",
            "Validate against the cluster without creating anything",
        ),
    ),
    "cluster deploy apply dashboard": (
        (
            "--namespace train --image example.com/x:1 --claim runs",
            "Serve a dashboard of the runs on a PersistentVolumeClaim",
        ),
    ),
    "image": (("check .", "Check the Dockerfile in this folder"),),
    "image check": (
        (". --gpu h100 --patch fixes.patch", "Check for an H100 and write the fixes as a patch"),
    ),
    "image build": ((". --tag demo:1", "Fix known problems, build, and explain a failure"),),
    "image test": (("demo:1", "Run the tests inside the image"),),
    "image push": (("demo:1 --to registry.example.com/demo", "Push and verify the digest"),),
    "image matrix": (("", "Show compatible versions"),),
    "skills": (("install --for claude-code", "Install all skills and slash commands for you"),),
    "skills list": (("--for opencode", "Show what is installed, and which copy opencode follows"),),
    "skills install": (
        ("--for claude-code --scope project", "Install into the git repository of this folder"),
        ("image-builder --for opencode", "Install one skill"),
    ),
    "skills uninstall": (("--for claude-code --scope project", "Remove what was installed and not edited"),),
    "dashboard": (
        ("", "Serve the runs under runs/"),
        ("runs/xor-ssgd --replay", "Replay a recorded run"),
    ),
    "stop": (("runs/xor-ssgd", "Stop a run gracefully, with a checkpoint"),),
    "lab": (("run kill-worker", "Kill a worker and check that the run survives"),),
    "lab list": (("", "List the experiments"),),
    "lab run": (("kill-worker --times 3", "Repeat three times (exit code 8 if a promise is broken)"),),
    "lab soak": (("--faults 20 --seed 7", "Inject twenty random faults"),),
    "agent": (
        ("--join 127.0.0.1:7401 --slots 2", "Offer two slots of this host"),
        ("--join node-1:7400,node-2:7400 --tls-dir pki --label zone=a", "Join a coordinator on other hosts"),
    ),
    "standby": (
        (
            "s3://my-bucket/runs/first --coordinator node-1:7400 --tls-dir pki",
            "Continue a run when its machine is lost",
        ),
    ),
    "coordinator agents": (("--at 127.0.0.1:7401", "List the hosts of agents"),),
    "coordinator": (("up --nodes 3", "Run three nodes on this machine until Ctrl-C"),),
    "coordinator up": (("--nodes 3 --dir cluster", "Run three nodes on this machine until Ctrl-C"),),
    "coordinator start": (
        (
            "--id 1 --peers 1=10.0.0.1:7400,2=10.0.0.2:7400,3=10.0.0.3:7400 --data-dir /var/lib/paceline",
            "Start one of three nodes",
        ),
    ),
    "coordinator status": (("--at 127.0.0.1:7400", "Show leader, voters and replication lag"),),
    "coordinator add": (("4=10.0.0.4:7400 --at 10.0.0.1:7400", "Add a fourth node"),),
    "coordinator remove": (("2 --at 10.0.0.1:7400", "Remove node 2"),),
    "coordinator step-down": (("--to 2 --at 10.0.0.1:7400", "Transfer leadership to node 2"),),
    "coordinator snapshot": (("--node 1 --at 10.0.0.1:7400", "Compact the log of node 1"),),
    "coordinator verify": (("/var/lib/paceline", "Verify the data folder of a stopped node"),),
    "coordinator init-pki": (
        ("--out pki --node 1=10.0.0.1 --node 2=10.0.0.2", "Create certificates for two nodes"),
    ),
    "coordinator kill": (("2", "Kill node 2 with SIGKILL and show the new leader"),),
    "coordinator lighthouse": (("status --at 127.0.0.1:7400", "List the torchft jobs"),),
    "coordinator lighthouse proxy": (
        ("--listen 127.0.0.1:29510 --at 127.0.0.1:7400", "Serve the torchft lighthouse protocol locally"),
    ),
    "coordinator lighthouse status": (("--at 127.0.0.1:7400", "List the torchft jobs"),),
    "coordinator lighthouse forget": (("demo --at 127.0.0.1:7400", "Forget a finished torchft job"),),
    "learn": (("", "List the exercises and your progress"),),
    "learn start": (("1", "Start an exercise"),),
    "learn predict": (("1 3", "Record a prediction"),),
    "learn answer": (("1 1 a", "Answer the first question of exercise 1"),),
    "learn check": (("1", "Check an exercise"),),
    "doctor": (
        ("", "Check this machine"),
        ("--num-workers 8 --json", "Check for eight workers, with JSON output"),
    ),
    "explain": (
        ("E201", "Explain an error code"),
        ("exit 7", "Explain an exit code"),
        ("TrainingStalled", "Explain an alert"),
    ),
    "completion": (("bash", "Print the completion script for bash"),),
}


def format_examples(path: str) -> str:
    """The examples of a command for its help; click's \\b keeps the lines as they are."""
    lines = ["\b", "Examples:"]
    for arguments, description in EXAMPLES.get(path, ()):
        lines += [f"  # {description}", f"  paceline {path} {arguments}".rstrip()]
    return "\n".join(lines) if len(lines) > 2 else ""
