"""What goes wrong, where does it run, and what is kept? These settings are for every mode too."""

from paceline.config.key import Key, Kind

DEPLOYMENT_KEYS = (
    Key(
        name="on_nan",
        help="ssgd: when the mean gradient of a step is not finite: stop with an error, or make no update "
        "at that step.",
        kind=Kind.CHOICE,
        default="stop in an elastic run; else nobody looks",
        example="skip",
        choices=("stop", "skip"),
    ),
    Key(
        name="straggler",
        help="Slow workers down: worker=1,factor=3 or p=0.05,factor=10 or "
        "worker=0,delay=50ms,from=100,to=200 or worker=2,factor=10,over=100 (little by little) or "
        "trace=FILE. Repeatable.",
        kind=Kind.STRAGGLERS,
        default="nobody is slowed down",
        example="worker=1,factor=3",
    ),
    Key(
        name="byzantine",
        help="Let workers send wrong gradients: worker=3,attack=garbage or worker=1,attack=scale,scale=-5 "
        "or p=0.1,attack=sign-flip,from=100,to=200. Repeatable.",
        kind=Kind.BYZANTINE,
        default="everybody is honest",
        example="worker=1,attack=garbage",
    ),
    Key(
        name="pace",
        help="A step's forward and backward take at least this long, such as 10ms.",
        kind=Kind.DURATION,
        default="0 (as fast as it goes); 10ms with launcher virtual",
        example="10ms",
        minimum=0,
    ),
    Key(
        name="transport",
        help="How tensors travel.",
        kind=Kind.CHOICE,
        default="auto",
        example="auto",
        choices=("auto", "none", "shm", "gloo", "nccl", "tcp", "cuda-ipc"),
    ),
    Key(
        name="launcher",
        help="Who starts the workers: this command, as processes here or (virtual) all in one process and in "
        "virtual time; or torchrun; or Ray.",
        kind=Kind.CHOICE,
        default="local; torchrun under torchrun",
        example="local",
        choices=("local", "virtual", "torchrun", "ray"),
    ),
    Key(
        name="address",
        help="launcher ray: where Ray is: local (started here, ended afterwards), auto, HOST:PORT or "
        "ray://HOST:PORT.",
        kind=Kind.TEXT,
        default="local",
        example="auto",
    ),
    Key(
        name="placement",
        help="launcher ray: how workers are spread over nodes.",
        kind=Kind.CHOICE,
        default="pack; spread for a mode with a server on several nodes",
        example="spread",
        choices=("pack", "spread", "strict_pack", "strict_spread"),
    ),
    Key(
        name="restarts",
        help="launcher ray: how often all workers are started anew from the newest checkpoint when one of "
        "them, or its node, is lost.",
        kind=Kind.INTEGER,
        default="0",
        example="3",
        minimum=0,
        maximum=1000,
    ),
    Key(
        name="vmap",
        help="launcher virtual: compute the gradients of all workers by one vmapped pass; not bit-equal.",
        kind=Kind.YES_NO,
        default="yes on a GPU",
        example="yes",
    ),
    Key(
        name="threads_per_worker",
        help="Processor threads that each worker computes with.",
        kind=Kind.INTEGER,
        default="1",
        example="1",
        minimum=1,
        maximum=1024,
    ),
    Key(
        name="timeout",
        help="How long anyone waits for a peer before giving up, such as 60s.",
        kind=Kind.DURATION,
        default="60s",
        example="60s",
        above=0,
    ),
    Key(
        name="checkpoint_every",
        help="Steps between checkpoints; 0 writes only the final one.",
        kind=Kind.INTEGER,
        default="0; 100 in an elastic run, or with restarts",
        example="100",
        minimum=0,
    ),
    Key(
        name="keep_checkpoints",
        help="How many complete checkpoints stay; older ones are removed.",
        kind=Kind.INTEGER,
        default="3",
        example="5",
        minimum=1,
    ),
    Key(
        name="checkpoint_store",
        help="Where copies of checkpoints go, beside the run folder: s3://BUCKET/PREFIX.",
        kind=Kind.TEXT,
        default="nowhere else",
        example="s3://my-bucket/runs/first",
    ),
    Key(
        name="events",
        help="Whether every step is recorded in events.jsonl.",
        kind=Kind.CHOICE,
        default="full",
        example="full",
        choices=("full", "off"),
    ),
    Key(
        name="export",
        help="Where else the record goes while the run trains: tensorboard[=FOLDER], mlflow[=ADDRESS], "
        "wandb[=offline|online]. Repeatable.",
        kind=Kind.EXPORTS,
        default="nowhere else",
        example="tensorboard",
    ),
    Key(
        name="gradient_norm_every",
        help="Steps between two looks of a worker at the norm of its gradient; 0: never.",
        kind=Kind.INTEGER,
        default="10",
        example="1",
        minimum=0,
    ),
    Key(
        name="alerts",
        help="A file of alert rules and of who is told about them while the run trains.",
        kind=Kind.TEXT,
        default="the default rules, shown and told to nobody",
        example="alerts.yaml",
    ),
    Key(
        name="run_dir",
        help="Folder of the run; it must not hold another run.",
        kind=Kind.TEXT,
        default="runs/<name>, or runs/<name>-2 and so on",
        example="runs/my-run",
    ),
    Key(
        name="save_dir",
        help="Folder in which the run gets a folder of its name.",
        kind=Kind.TEXT,
        default="runs",
        example="results",
    ),
)
