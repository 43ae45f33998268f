"""Which errors does a run meet while it trains? E4: what failed, and who was lost."""

from paceline.errors import ExitCode
from paceline.explained.row import Row

_FAILED = ExitCode.TRAINING_FAILED

ROWS = (
    Row(
        "E400",
        _FAILED,
        "paceline.errors:TrainingError",
        "a participant failed, and the run could not go on without it",
        ("an exception in the task", "no memory left: the system killed it", "a full disk"),
        ("read the log that is named, at its end", "paceline train --resume RUN", "or use --elastic"),
        "the run failed: worker-1: it was killed by signal 9",
    ),
    Row(
        "E401",
        _FAILED,
        "paceline.errors:HopelessError",
        "trying the same again would fail the same way, so nobody does",
        ("settings that do not fit the model", "all copies of something were lost"),
        ("do what the fix says, then start or resume",),
        "the model has 1 blocks of 64 numbers, too few for 2 parts",
    ),
    Row(
        "E402",
        _FAILED,
        "paceline.errors:PeerLostError",
        "another participant ended or went away; its own log says why",
        ("it failed first", "it was killed", "the network between machines"),
        ("look at the logs in RUN/logs, the earliest error first", "paceline events RUN"),
        "worker 1 was lost: connection reset",
    ),
    Row(
        "E403",
        _FAILED,
        "paceline.errors:NotFiniteError",
        "a gradient became NaN or infinite; an update with it would spoil the model for good",
        ("a learning rate that is too high", "a bad sample", "numbers too large for fp16"),
        ("lower --lr, or set --clip-norm 1", "--on-nan skip leaves such steps out"),
        "the mean gradient of step 12 is not finite: NaN or infinity in layer.weight",
    ),
    Row(
        "E404",
        _FAILED,
        "paceline.errors:ProtocolError",
        "both sides of a connection must be of one run and of one version",
        ("another version on one machine", "something else listens or speaks on that port"),
        ("install the same version everywhere", "see who uses the port: paceline doctor"),
        "a frame began with b'GET '/32, which is not this protocol",
    ),
    Row(
        "E405",
        _FAILED,
        "paceline.errors:SilenceError",
        "nothing came within --timeout, and nobody said why",
        ("a participant is stuck or much slower", "a step that takes longer than --timeout"),
        ("paceline top -1 RUN shows who waits for whom", "raise --timeout"),
        "waited 60 s for worker 2, and nothing came",
    ),
    Row(
        "E406",
        _FAILED,
        "paceline.worker.place_membership:FencedError",
        "somebody else has taken over this one's place, so it may not go on",
        ("it was silent for too long, and was replaced", "a machine that slept"),
        ("nothing: the run goes on without it",),
        "another server has taken over part 0",
    ),
)
