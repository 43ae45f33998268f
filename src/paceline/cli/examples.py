"""Examples for the help of each command: a line to paste and what it does.

A test parses every example with the real command line and requires one for every command.
"""

# path of the command: pairs of (arguments behind that path, what it does)
EXAMPLES: dict[str, tuple[tuple[str, str], ...]] = {
    "train": (
        ("--mode ssgd --num-workers 2 --steps 10", "two workers average their gradients at every step"),
        ("--mode ssp --num-workers 4 --straggler worker=1,factor=3", "four, and one is three times slower"),
        ("--config train.yaml --set lr=0.05", "settings from a file, one of them changed"),
        ("--resume runs/xor-ssgd", "go on with a run that was stopped"),
    ),
    "compare": (
        ("--modes ssgd,asgd,ssp --num-workers 2 --steps 50", "which way of agreeing was worth it?"),
        ("--modes ssgd,localsgd --task digits --repeats 3", "two modes, three times each, with error bars"),
    ),
    "benchmark": (("torch --num-workers 2 --epochs 1", "one process against two, by us and by torch"),),
    "benchmark keras": (("--num-workers 2 --epochs 1 --subset 2000", "Keras alone against Ray Train"),),
    "benchmark torch": (("--num-workers 2 --epochs 1", "one process against two"),),
    "tune": (("--search lr=log:0.001..1 --trials 4 --steps 20", "four trials of a learning rate"),),
    "report": (
        ("runs/xor-ssgd runs/xor-asgd --out report.html", "two finished runs side by side, on one page"),
    ),
    "demo": (
        ("", "every mode on XOR with one slow worker; about a minute"),
        ("--json --run-dir runs/demo", "the same as one JSON object"),
    ),
    "laws": (
        ("--mode ssgd", "prove that a mode does what it says"),
        ("--mode my_mode:Mine --like ssgd", "the same of a mode of your own"),
    ),
    "replay": (("runs/xor-ssgd", "execute it again, and compare every bit"),),
    "verify": (("runs/xor-ssgd", "prove that nothing was lost or done twice"),),
    "checkpoint": (("list runs/xor-ssgd", "which checkpoints a run has"),),
    "checkpoint list": (("runs/xor-ssgd", "which checkpoints a run has"),),
    "checkpoint now": (("runs/xor-ssgd", "ask a run that is at work for one"),),
    "checkpoint verify": (("runs/xor-ssgd", "are they what was written?"),),
    "checkpoint export": (("runs/xor-ssgd --out weights.safetensors", "take the newest weights out"),),
    "export": (("runs/xor-ssgd --to tensorboard", "write its record for TensorBoard"),),
    "plan": (
        ("--mode ssp --num-workers 4 --staleness 3", "what would train do? Nothing is started"),
        ("--config train.yaml --json", "the same of a file, as one JSON object"),
    ),
    "config": (("show --origin --config train.yaml", "who said what"),),
    "config show": (
        (
            "--origin --config train.yaml --steps 50",
            "each setting, and the flag, variable or line that set it",
        ),
        ("--all", "also what nobody said, with its default"),
    ),
    "config keys": (
        ("", "every setting in a line"),
        ("staleness", "all about one: flag, variable, values, default"),
    ),
    "simulate": (("--workers 1,2,4,8 --pace 10ms", "predict every mode on equal work; starts nothing"),),
    "advise": (("runs/xor-ssgd", "which mode would have been best for this work?"),),
    "data": (("fetch cifar10", "get CIFAR-10"),),
    "data fetch": (("cifar10 --to data", "download it into the folder data"),),
    "data prepare": (("sp500 --csv closes.csv --out sp500.npz", "daily closes become samples"),),
    "data prepare sp500": (("--csv closes.csv --out sp500.npz", "daily closes become samples"),),
    "data shard": (("charlm corpus.txt --out shards", "write a text as shards into a folder"),),
    "data tokens": (("corpus.txt --out tokens", "bytes of a text become tokens"),),
    "data upload": (("shards --pvc data --to digits", "copy a folder onto a claim of the cluster"),),
    "data verify": (("shards", "is a data set what its index says?"),),
    "status": (
        ("", "how the newest run under runs/ is"),
        ("runs/xor-ssgd --json", "a run by name, as one JSON object"),
    ),
    "events": (
        ("runs/xor-ssgd", "what happened"),
        ("runs/xor-ssgd --follow --kind supervision", "one kind of event, as it happens"),
    ),
    "top": (
        ("runs/xor-ssgd", "its workers on the whole terminal"),
        ("-1", "once, for a script or a log"),
    ),
    "alerts": (("list runs/xor-ssgd --all", "every rule and how it stands"),),
    "alerts list": (("runs/xor-ssgd", "what fires now, and what did"),),
    "alerts watch": (("runs/xor-ssgd --rules alerts.yaml", "have messages sent while the run trains"),),
    "alerts test": (("webhook --rules alerts.yaml", "send one message, to see that it arrives"),),
    "alerts silence": (("runs/xor-ssgd --for 10m --rule WorkerStraggling", "no messages of this rule"),),
    "alerts export": (("--out rules.yaml", "the rules for Prometheus"),),
    "alerts check": (("alerts.yaml", "can a file of rules be read?"),),
    "metrics": (("list", "every metric and what it means"),),
    "metrics list": (("", "every metric and what it means"),),
    "metrics sample": (("runs/xor-ssgd", "its metrics once, as Prometheus reads them"),),
    "metrics serve": (("runs/xor-ssgd --port 9464", "let Prometheus scrape a run"),),
    "metrics export-grafana": (("--out grafana", "a dashboard for Grafana"),),
    "metrics export-rules": (("--out rules.yaml", "the alert rules for Prometheus"),),
    "workers": (("list runs/xor-ssgd", "who is at work"),),
    "workers list": (("runs/xor-ssgd", "who is at work"),),
    "workers add": (("runs/xor-ssgd 2 --wait", "two more, and wait until they train"),),
    "workers remove": (("runs/xor-ssgd worker-1", "let one go in good order"),),
    "workers pause": (("runs/xor-ssgd worker-1 --for 10", "hold one for ten seconds"),),
    "workers resume": (("runs/xor-ssgd worker-1", "let it go on"),),
    "workers slow": (("runs/xor-ssgd worker-1 --factor 4 --for 20", "four times slower for a while"),),
    "workers kill": (("runs/xor-ssgd worker-1", "as a crash would; see how the run goes on"),),
    "workers partition": (("runs/xor-ssgd worker-1", "cut one off the coordinator for a while"),),
    "workers heal": (("runs/xor-ssgd", "join again what was cut"),),
    "ray": (("up --nodes 2", "a small cluster on this machine"),),
    "ray up": (("--nodes 2 --cpus-per-node 2", "a small cluster on this machine"),),
    "ray down": (("", "end it again"),),
    "ray submit": (("--task xor --mode ssgd --num-workers 2", "hand a run to the cluster"),),
    "ray list": (("", "which jobs the cluster has"),),
    "ray status": (("raysubmit_1", "how one is"),),
    "ray logs": (("raysubmit_1 --follow", "what it prints, as it comes"),),
    "ray stop": (("raysubmit_1", "end it"),),
    "job": (("list", "which jobs the cluster has"),),
    "job render": (
        (
            "--target rayjob --image example.com/x:1 --name demo --task xor --steps 50",
            "a manifest, on stdout",
        ),
    ),
    "job validate": (("job.yaml", "what is wrong with a manifest?"),),
    "job submit": (
        ("job.yaml --namespace train", "send it, and follow its logs"),
        ("--target job --task xor --nodes 2 --image example.com/x:1 --name demo", "without a file"),
    ),
    "job attach": (("demo", "follow it again"),),
    "job list": (("--all-namespaces", "which jobs there are"),),
    "job status": (("demo", "how one is"),),
    "job logs": (("demo --rank 1 --tail 50", "the last lines of one rank"),),
    "job explain": (("demo", "why is it stuck, and what helps?"),),
    "job results": (("demo --out results", "fetch what it left"),),
    "job stop": (("demo", "end it"),),
    "cluster": (("check", "what is this cluster good for?"),),
    "cluster list": (("", "which clusters the kubeconfig names"),),
    "cluster check": (("--namespace train", "what is this cluster good for?"),),
    "cluster fix": (
        ("--dry-run", "what would be mended"),
        ("--apply", "mend it; --undo takes it back"),
    ),
    "deploy": (("render coordinator --namespace train --image example.com/x:1", "manifests, on stdout"),),
    "deploy render": (("coordinator --namespace train --image example.com/x:1", "manifests, on stdout"),),
    "deploy render coordinator": (
        ("--namespace train --image example.com/x:1 --replicas 3", "three nodes that agree"),
    ),
    "deploy render dashboard": (
        ("--namespace train --image example.com/x:1 --claim runs", "shows the runs on a claim"),
    ),
    "deploy apply": (("coordinator --namespace train --image example.com/x:1", "make them in the cluster"),),
    "deploy apply coordinator": (
        ("--namespace train --image example.com/x:1 --dry-run", "would the cluster take it?"),
    ),
    "deploy apply dashboard": (
        ("--namespace train --image example.com/x:1 --claim runs", "shows the runs on a claim"),
    ),
    "image": (("check .", "what is wrong with this Dockerfile?"),),
    "image check": ((". --gpu h100 --patch fixes.patch", "conflicts, and the least edit that mends them"),),
    "image build": ((". --tag demo:1", "mend, build, and say why if it fails"),),
    "image test": (("demo:1", "does it work inside?"),),
    "image push": (("demo:1 --to registry.example.com/demo", "send it, and prove that it arrived"),),
    "image matrix": (("", "which versions go together"),),
    "dashboard": (
        ("", "watch the runs under runs/ in a browser"),
        ("runs/xor-ssgd --replay", "play a recorded run from its beginning"),
    ),
    "stop": (("runs/xor-ssgd", "in good order, with a checkpoint"),),
    "lab": (("run kill-worker", "kill a worker, and see the run survive"),),
    "lab list": (("", "which experiments there are"),),
    "lab run": (("kill-worker --times 3", "three times; exit code 8 when a promise breaks"),),
    "lab soak": (("--faults 20 --seed 7", "twenty random faults"),),
    "coordinator": (("up --nodes 3", "three nodes here, until Ctrl-C"),),
    "coordinator up": (("--nodes 3 --dir cluster", "three nodes here, until Ctrl-C"),),
    "coordinator start": (
        (
            "--id 1 --peers 1=10.0.0.1:7400,2=10.0.0.2:7400,3=10.0.0.3:7400 --data-dir /var/lib/paceline",
            "one node of three, on its own machine",
        ),
    ),
    "coordinator status": (("--at 127.0.0.1:7400", "who leads, who votes, who is behind"),),
    "coordinator add": (("4=10.0.0.4:7400 --at 10.0.0.1:7400", "take a fourth node in"),),
    "coordinator remove": (("2 --at 10.0.0.1:7400", "take node 2 out"),),
    "coordinator step-down": (("--to 2 --at 10.0.0.1:7400", "let node 2 lead"),),
    "coordinator snapshot": (("--node 1 --at 10.0.0.1:7400", "shorten the log of node 1"),),
    "coordinator verify": (("/var/lib/paceline", "is a node's folder sound? The node must not run"),),
    "coordinator init-pki": (("--out pki --node 1=10.0.0.1 --node 2=10.0.0.2", "certificates for nodes"),),
    "coordinator kill": (("2", "kill -9 of node 2 of the cluster here, and who leads then"),),
    "lighthouse": (("status --at 127.0.0.1:7400", "which torchft jobs there are"),),
    "lighthouse proxy": (("--listen 127.0.0.1:29510 --at 127.0.0.1:7400", "what a torchft job talks to"),),
    "lighthouse status": (("--at 127.0.0.1:7400", "which torchft jobs there are"),),
    "lighthouse forget": (("demo --at 127.0.0.1:7400", "a job that will not come back"),),
    "learn": (("", "the parts, and how far you are"),),
    "learn start": (("1", "begin a part"),),
    "learn predict": (("1 3", "write your guess down first"),),
    "learn answer": (("1 1 a", "answer its first question"),),
    "learn check": (("1", "is it done?"),),
    "doctor": (
        ("", "is this machine ready to train?"),
        ("--num-workers 8 --json", "for eight workers, as one JSON object"),
    ),
    "explain": (
        ("E201", "an error's meaning, its causes, what to do"),
        ("exit 7", "an exit code"),
        ("TrainingStalled", "an alert"),
    ),
    "completion": (("bash", "the script; eval it, or put it where your shell looks"),),
}


def format_examples(path: str) -> str:
    """The part of a command's help that shows how it is used; kept as it is by click's \\b."""
    lines = ["\b", "Examples:"]
    for words, what in EXAMPLES.get(path, ()):
        lines += [f"  $ {' '.join(['paceline', path, words]).strip()}", f"      {what}"]
    return "\n".join(lines) if len(lines) > 2 else ""
