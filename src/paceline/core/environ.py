"""What a process inherits: variables, ignored signals, a terminal. The only reader of os.environ.

`PACELINE_<KEY>` sets the config key of the same name; everything else that the
product looks at is listed here as a function, so that it can be documented.
"""

import errno
import os
import signal
import sys
import termios
from pathlib import Path

PREFIX = "PACELINE_"
# Variables with our prefix that are not configuration keys.
RAY_START = "PACELINE_RAY_START_TIMEOUT"  # seconds for a Ray that is started here
RESERVED = frozenset(
    {
        "PACELINE_TOKEN",
        "PACELINE_COLOR",
        "PACELINE_COORDINATOR",
        "PACELINE_DATA_FOLDER",
        "PACELINE_LIVE_LOG",
        RAY_START,
    }
)


def config_variables() -> dict[str, str]:
    """`PACELINE_NUM_WORKERS=4` becomes `{"num_workers": "4"}`."""
    return {
        name.removeprefix(PREFIX).lower(): value
        for name, value in os.environ.items()
        if name.startswith(PREFIX) and name not in RESERVED
    }


def completion_instruction() -> str | None:
    """`_PACELINE_COMPLETE`, by which a shell asks what the next word can be; None: it does not ask."""
    return os.environ.get("_PACELINE_COMPLETE") or None


def stop_signals() -> tuple[signal.Signals, ...]:
    """The signals that stop a command in good order; not SIGHUP where it is ignored, as under nohup."""
    usual = (signal.SIGINT, signal.SIGTERM)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        return usual
    return (*usual, signal.SIGHUP)


def leave_dead_terminal() -> None:
    """After a hang-up every write to the terminal fails; from here on it goes nowhere."""
    # Under torchrun sys.stderr has a descriptor of its own (worker/rank_output.py).
    for fd in {0, 1, 2, sys.stderr.fileno()}:
        try:
            termios.tcgetattr(fd)
        except termios.error as error:
            if error.args[0] == errno.EIO:
                null = os.open(os.devnull, os.O_RDWR)
                os.dup2(null, fd)
                os.close(null)


def is_ci() -> bool:
    return bool(os.environ.get("CI"))


def wants_colour(*, is_tty: bool) -> bool:
    """Colour unless the output is no terminal, NO_COLOR is set, or the terminal is dumb."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return is_tty or bool(os.environ.get("FORCE_COLOR"))


def colour_setting() -> str | None:
    """`PACELINE_COLOR`, the default of `--color`; None where it says nothing we know."""
    setting = os.environ.get("PACELINE_COLOR", "").lower()
    return setting if setting in {"auto", "always", "never"} else None


def token() -> str | None:
    """`PACELINE_TOKEN`, a client's secret for the coordinator; None when it is not set or empty."""
    return os.environ.get("PACELINE_TOKEN", "").strip() or None


def coordinator() -> str | None:
    """`PACELINE_COORDINATOR`: a cluster's nodes (HOST:PORT,…), or its folder; None when it says nothing."""
    return os.environ.get("PACELINE_COORDINATOR", "").strip() or None


def wants_live_log() -> bool:
    """`PACELINE_LIVE_LOG`: somebody watches, so a log is written every 50 ms, and not twice a second."""
    return os.environ.get("PACELINE_LIVE_LOG", "").strip() not in ("", "0")


def has_s3_endpoint() -> bool:
    """Is the object store another than Amazon's? boto3 reads these variables itself."""
    return bool(os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL"))


def docker_config_folder() -> Path:
    """Where docker keeps its settings: `$DOCKER_CONFIG`, else `~/.docker`."""
    said = os.environ.get("DOCKER_CONFIG", "").strip()
    return Path(said) if said else Path.home() / ".docker"


def registry_login_files() -> list[Path]:
    """Where podman and docker keep logins, in the order in which podman looks."""
    said = os.environ.get("REGISTRY_AUTH_FILE", "").strip()
    if said:
        return [Path(said)]
    own = Path(os.environ.get("XDG_CONFIG_HOME", ""))
    runtime = os.environ.get("XDG_RUNTIME_DIR", "").strip() or f"/run/containers/{os.getuid()}"
    return [
        Path(runtime) / "containers" / "auth.json",
        (own if own.is_absolute() else Path.home() / ".config") / "containers" / "auth.json",
        docker_config_folder() / "config.json",
    ]


def kubeconfig() -> str | None:
    """`KUBECONFIG`, where clusters are named: one file, or several with colons between; None: not set."""
    return os.environ.get("KUBECONFIG", "").strip() or None


def hugging_face_token_file() -> Path:
    """Where `hf auth login` keeps the token: `$HF_TOKEN_PATH`, else `$HF_HOME/token`, else the cache's."""
    said = os.environ.get("HF_TOKEN_PATH", "").strip()
    home = os.environ.get("HF_HOME", "").strip() or "~/.cache/huggingface"
    return Path(said).expanduser() if said else Path(home).expanduser() / "token"


def mlflow_tracking_uri() -> str | None:
    """`MLFLOW_TRACKING_URI`, where MLflow's own tools look too."""
    return os.environ.get("MLFLOW_TRACKING_URI", "").strip() or None


def mlflow_experiment() -> str | None:
    """`MLFLOW_EXPERIMENT_NAME`, to which exported runs belong."""
    return os.environ.get("MLFLOW_EXPERIMENT_NAME", "").strip() or None


def wandb_project() -> str | None:
    """`WANDB_PROJECT`, to which exported runs belong."""
    return os.environ.get("WANDB_PROJECT", "").strip() or None


def config_folder() -> Path:
    """Where this user's own files are: `$XDG_CONFIG_HOME/paceline`, else `~/.config/paceline`."""
    said = Path(os.environ.get("XDG_CONFIG_HOME", ""))
    # A relative one is to be ignored, says the specification.
    return (said if said.is_absolute() else Path.home() / ".config") / "paceline"


def data_folder() -> Path:
    """Where fetched data sets are: `$PACELINE_DATA_FOLDER`, else the cache's folder, `~/.cache/paceline`."""
    said = os.environ.get("PACELINE_DATA_FOLDER", "").strip()
    if said:
        return Path(said).expanduser()
    cache = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (cache if cache.is_absolute() else Path.home() / ".cache") / "paceline"


def cuda_visible_devices() -> tuple[str, ...] | None:
    """The GPUs that CUDA_VISIBLE_DEVICES leaves visible; None when it is not set."""
    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if listed is None:
        return None
    # CUDA stops at the first id it does not know; -1 is the usual way to hide everything.
    return tuple(d.strip() for d in listed.split(",") if d.strip() and not d.strip().startswith("-"))


# What whoever started us as one of several processes says about them.
_OF_TORCHRUN = (
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "TORCHELASTIC_RESTART_COUNT",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_USE_AGENT_STORE",
)


def torchrun_variables() -> dict[str, str]:
    """Those of torchrun's variables that are set; config/environment.py says what they mean."""
    return {name: value for name in _OF_TORCHRUN if (value := os.environ.get(name, "").strip())}


# Names without a prefix, as scripts that compare one process with many have them.
_OF_BENCHMARKS = ("EPOCHS", "BATCH_SIZE", "NUM_WORKERS")


def benchmark_variables() -> dict[str, str]:
    """`EPOCHS=3` becomes `{"epochs": "3"}`: defaults of `paceline benchmark`, behind its flags."""
    return {name.lower(): v for name in _OF_BENCHMARKS if (v := os.environ.get(name, "").strip())}


def let_gloo_use_loopback() -> None:
    """For processes that are all on this host; whoever has chosen an interface keeps it."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")


def ray_address() -> str | None:
    """`RAY_ADDRESS`, where Ray's own commands look for a cluster; None when it says nothing."""
    return os.environ.get("RAY_ADDRESS", "").strip() or None


def ray_uses_tls() -> bool:
    """`RAY_USE_TLS`: Ray's processes know each other by certificates."""
    return os.environ.get("RAY_USE_TLS", "0") not in ("", "0")


# Ray reports how it is used unless told not to, and warns of what it may do differently one day.
RAY_START_S = 180
_QUIET_RAY = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}


def prepare_ray() -> None:
    """Before Ray is imported; whoever has said otherwise is heard."""
    for name, value in _QUIET_RAY.items():
        os.environ.setdefault(name, value)
    # A cluster asks for the token unless told not to, but a client only shows it when told to. Whoever has
    # imported Ray before us has decided: it does not look again, and what it starts must not ask.
    if "ray" not in sys.modules and ((file := ray_token_file()) is None or file.exists()):
        os.environ.setdefault("RAY_AUTH_MODE", "token")


def ray_start_s() -> int:
    """How long a Ray that is started here may take."""
    said = os.environ.get(RAY_START, "")
    return int(said) if said.isdigit() else RAY_START_S


def ray_token_file() -> Path | None:
    """Where Ray keeps this user's token; None: the environment holds another one, or says where it is."""
    is_said = os.environ.get("RAY_AUTH_TOKEN") or os.environ.get("RAY_AUTH_TOKEN_PATH")
    return None if is_said else Path.home() / ".ray" / "auth_token"


def state_folder() -> Path:
    """What commands remember: `$XDG_STATE_HOME/paceline`, else `~/.local/state/paceline`."""
    said = Path(os.environ.get("XDG_STATE_HOME", ""))
    return (said if said.is_absolute() else Path.home() / ".local" / "state") / "paceline"


def for_child(**extra: str) -> dict[str, str]:
    """This process's environment plus `extra`, to hand to a process we start."""
    return {**os.environ, **extra}


def for_tensorflow(*, threads: int) -> dict[str, str]:
    """More for a process with TensorFlow: the older Keras, its threads, and time for workers to start."""
    start_s = os.environ.get("RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S", "300")
    return {
        "TF_USE_LEGACY_KERAS": "1",
        "OMP_NUM_THREADS": str(threads),
        "PYTHONUNBUFFERED": "1",
        "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": start_s,
    }


def for_child_with_our_python() -> dict[str, str]:
    """The same, where `python` is the one that runs us, whatever PATH said."""
    ours = sys.executable.rpartition(os.sep)[0]
    return for_child(PATH=os.pathsep.join([ours, os.environ.get("PATH", os.defpath)]))


def set_default_variables(**names: str) -> None:
    """For a vendor's code in this process, and only where the user said nothing."""
    for name, value in names.items():
        os.environ.setdefault(name, value)
