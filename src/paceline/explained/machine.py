"""Which errors does this machine cause? E2: something is missing, taken or not allowed here."""

from paceline.errors import ExitCode
from paceline.explained.row import Row

_NOT = ExitCode.NOT_READY

ROWS = (
    Row(
        "E200",
        _NOT,
        "paceline.errors:NotReadyError",
        "this machine lacks something that the command needs",
        ("a tool that is not there or does not answer", "a login", "a place without enough room"),
        ("do what the fix says, then run the same again", "paceline doctor looks at the usual ones"),
        "no Ray cluster with a dashboard is known here",
    ),
    Row(
        "E201",
        _NOT,
        "paceline.errors:MissingPackageError",
        "an optional package, or a tool, is not installed where paceline runs",
        ("paceline was installed without this extra", "another Python than you think"),
        ("the fix has the pip command", "paceline doctor lists which extras are here"),
        "data in s3:// needs boto3, which is not installed",
    ),
    Row(
        "E202",
        _NOT,
        "paceline.errors:PortError",
        "the address cannot be listened on",
        ("another process listens there, often an earlier run", "the address is not of this machine"),
        ("take another port; 0 takes any that is free", "paceline doctor finds processes of earlier runs"),
        "cannot listen on 127.0.0.1:8642: Address already in use",
    ),
    Row(
        "E203",
        _NOT,
        "paceline.errors:CannotWriteError",
        "the file system refused to write",
        ("no permission", "no room left", "a folder that is not there"),
        ("name another place", "df -h FOLDER shows the room; paceline doctor too"),
        "cannot write compose.yaml: Permission denied",
    ),
    Row(
        "E204",
        _NOT,
        "paceline.errors:InUseError",
        "something of ours is already at work there, and two would spoil each other's work",
        ("the same command in another terminal", "an earlier one that was left running"),
        ("wait for it, or stop it", "or name another folder"),
        "the cluster in .paceline runs already",
    ),
    Row(
        "E205",
        _NOT,
        "paceline.errors:NoGpuError",
        "a GPU was asked for, and torch finds none",
        ("a torch that is built for CPUs", "no driver", "CUDA_VISIBLE_DEVICES hides them"),
        ("paceline doctor shows driver and torch", "or use --device cpu"),
        "device is cuda, but rank 1 on node-2 has no GPU that torch can use",
    ),
    Row(
        "E206",
        _NOT,
        "paceline.errors:NoPageError",
        "the dashboard's page is built when paceline is installed, and was not",
        ("a checkout in which `make` was not run", "no npm when it was built"),
        ("make page", "or install a wheel, which carries the page"),
        "the page was not built: dashboard/static has no index.html",
    ),
    Row(
        "E207",
        _NOT,
        "paceline.errors:VersionsDifferError",
        "all participants of a run must have the same versions and the same data",
        ("one node was not upgraded", "a node with an older copy of the data"),
        ("install the same versions everywhere", "or leave that node out"),
        "rank 0 has torch 2.9.1, but rank 1 on gpu-02 has 2.8.0",
    ),
    Row(
        "E208",
        _NOT,
        "",
        "the file system does not let us open, make or write this",
        ("no permission", "no room left", "a folder that is not there", "a file where a folder belongs"),
        ("name another place, as the fix says", "ls -ld FOLDER; df -h FOLDER; paceline doctor"),
        "runs/first: Permission denied",
    ),
    Row(
        "E209",
        _NOT,
        "paceline.errors:FolderInUseError",
        "one command at a time writes into a folder of a run, a comparison or a search",
        ("the run is still training", "the same command was started in another terminal"),
        (
            "wait until the process that is named has ended, or stop it with Ctrl-C or SIGTERM",
            "or name another folder; the lock goes with its process, also after kill -9",
        ),
        "runs/first is in use by `paceline train`, process 4711 on gpu-02",
    ),
    Row(
        "E210",
        _NOT,
        "paceline.launchers.ray_door:RayStartError",
        "the processes of a Ray that is started here came too late, so nothing was started",
        ("a machine that is busy with other work", "a slow disk", "too little memory for Ray's store"),
        (
            "PACELINE_RAY_START_TIMEOUT=600 waits longer",
            "start Ray first: paceline ray up, then --address auto",
        ),
        "Ray did not start within 180 s: The current node timed out during startup.",
    ),
)
