"""Inherited state of a process: variables, ignored signals, a terminal. The only reader of os.environ.

`PACELINE_<KEY>` sets the config key of the same name; everything else that the
product reads is listed here as a function, so that it can be documented.
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
# Seconds that a run without a living worker waits for agents, if that is longer than --timeout.
HOST_TIMEOUT = "PACELINE_HOST_TIMEOUT"
RESERVED = frozenset(
    {
        "PACELINE_TOKEN",
        "PACELINE_COLOR",
        "PACELINE_CONFIG",
        "PACELINE_COORDINATOR",
        "PACELINE_DATA_FOLDER",
        "PACELINE_LIVE_LOG",
        "PACELINE_TLS_DIR",
        "PACELINE_TLS_NAME",
        HOST_TIMEOUT,
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
    """`_PACELINE_COMPLETE`, by which a shell requests completions; None without a request."""
    return os.environ.get("_PACELINE_COMPLETE") or None


def stop_signals() -> tuple[signal.Signals, ...]:
    """The signals for an orderly stop of a command; without SIGHUP if it is ignored, as under nohup."""
    signals = (signal.SIGINT, signal.SIGTERM)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        return signals
    return (*signals, signal.SIGHUP)


def leave_dead_terminal() -> None:
    """Redirect the terminal to /dev/null: after a hang-up every write to it fails."""
    # Under torchrun sys.stderr has a separate descriptor (worker/rank_output.py).
    for fd in {0, 1, 2, sys.stderr.fileno()}:
        try:
            termios.tcgetattr(fd)
        except termios.error as error:
            if error.args[0] == errno.EIO:
                null = os.open(os.devnull, os.O_RDWR)
                os.dup2(null, fd)
                os.close(null)


def python_path(first: Path) -> str:
    """`PYTHONPATH` with this folder before those of this process."""
    inherited = os.environ.get("PYTHONPATH", "")
    return os.pathsep.join(filter(None, (str(first), inherited)))


def is_ci() -> bool:
    return bool(os.environ.get("CI"))


def wants_colour(*, is_tty: bool) -> bool:
    """Colour unless the output is no terminal, NO_COLOR is set, or the terminal is dumb."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return is_tty or bool(os.environ.get("FORCE_COLOR"))


def colour_setting() -> str | None:
    """`PACELINE_COLOR`, the default of `--color`; None if it is unset or unknown."""
    setting = os.environ.get("PACELINE_COLOR", "").lower()
    return setting if setting in {"auto", "always", "never"} else None


def token() -> str | None:
    """`PACELINE_TOKEN`, a client's secret for the coordinator; None when it is not set or empty."""
    return os.environ.get("PACELINE_TOKEN", "").strip() or None


def coordinator() -> str | None:
    """`PACELINE_COORDINATOR`: a cluster's nodes (HOST:PORT,…), or its folder; None if it is unset."""
    return os.environ.get("PACELINE_COORDINATOR", "").strip() or None


def tls_dir() -> Path | None:
    """`PACELINE_TLS_DIR`: a folder with a client's certificate for the coordinator; None if it is unset."""
    value = os.environ.get("PACELINE_TLS_DIR", "").strip()
    return Path(value) if value else None


def tls_name() -> str | None:
    """`PACELINE_TLS_NAME`: whose certificate to use, if the folder has several of one role."""
    return os.environ.get("PACELINE_TLS_NAME", "").strip() or None


def wants_live_log() -> bool:
    """`PACELINE_LIVE_LOG`: a live view reads the log, so it is written every 50 ms, not twice a second."""
    return os.environ.get("PACELINE_LIVE_LOG", "").strip() not in ("", "0")


def s3_endpoint() -> str:
    """The object store, if it is not Amazon's; else empty. boto3 reads these variables itself."""
    return os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or ""


def docker_config_folder() -> Path:
    """Folder of docker's settings: `$DOCKER_CONFIG`, else `~/.docker`."""
    value = os.environ.get("DOCKER_CONFIG", "").strip()
    return Path(value) if value else Path.home() / ".docker"


def registry_login_files() -> list[Path]:
    """Login files of podman and docker, in podman's search order."""
    value = os.environ.get("REGISTRY_AUTH_FILE", "").strip()
    if value:
        return [Path(value)]
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
    """Token file of `hf auth login`: `$HF_TOKEN_PATH`, else `$HF_HOME/token`, else the cache's."""
    value = os.environ.get("HF_TOKEN_PATH", "").strip()
    home = os.environ.get("HF_HOME", "").strip() or "~/.cache/huggingface"
    return Path(value).expanduser() if value else Path(home).expanduser() / "token"


def mlflow_tracking_uri() -> str | None:
    """`MLFLOW_TRACKING_URI`, which MLflow's own tools also read."""
    return os.environ.get("MLFLOW_TRACKING_URI", "").strip() or None


def mlflow_experiment() -> str | None:
    """`MLFLOW_EXPERIMENT_NAME`, to which exported runs belong."""
    return os.environ.get("MLFLOW_EXPERIMENT_NAME", "").strip() or None


def wandb_project() -> str | None:
    """`WANDB_PROJECT`, to which exported runs belong."""
    return os.environ.get("WANDB_PROJECT", "").strip() or None


def config_folder() -> Path:
    """Folder of this user's configuration: `$XDG_CONFIG_HOME/paceline`, else `~/.config/paceline`."""
    folder = Path(os.environ.get("XDG_CONFIG_HOME", ""))
    # The specification requires ignoring a relative path.
    return (folder if folder.is_absolute() else Path.home() / ".config") / "paceline"


def home_folder() -> Path:
    return Path.home()


def claude_folder() -> Path:
    """Folder of this user's skills for Claude Code: `$CLAUDE_CONFIG_DIR`, else `~/.claude`."""
    value = os.environ.get("CLAUDE_CONFIG_DIR", "").strip()
    return Path(value).expanduser() if value else Path.home() / ".claude"


def opencode_folder() -> Path:
    """Folder of this user's skills for opencode: `$XDG_CONFIG_HOME/opencode`, else `~/.config/opencode`."""
    return config_folder().parent / "opencode"


def data_folder() -> Path:
    """Folder of fetched data sets: `$PACELINE_DATA_FOLDER`, else the cache's folder, `~/.cache/paceline`."""
    value = os.environ.get("PACELINE_DATA_FOLDER", "").strip()
    if value:
        return Path(value).expanduser()
    return cache_folder()


def cache_folder() -> Path:
    """Folder of this user's caches: `$XDG_CACHE_HOME/paceline`, else `~/.cache/paceline`."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (cache if cache.is_absolute() else Path.home() / ".cache") / "paceline"


def mirrors_folder() -> Path:
    """Folder of the copies of runs from their stores, which can only be read."""
    return cache_folder() / "runs"


def cuda_visible_devices() -> tuple[str, ...] | None:
    """The GPUs that CUDA_VISIBLE_DEVICES leaves visible; None when it is not set."""
    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if listed is None:
        return None
    # CUDA stops at the first id it does not know; -1 is the usual way to hide everything.
    return tuple(d.strip() for d in listed.split(",") if d.strip() and not d.strip().startswith("-"))


# Variables that a launcher sets for each of its processes.
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
    """Those of torchrun's variables that are set; config/environment.py parses them."""
    return {name: value for name in _OF_TORCHRUN if (value := os.environ.get(name, "").strip())}


def hide_launcher() -> None:
    """Remove torchrun's variables: a library in a training script must not form a process group of its own.

    A run of Paceline is one process to Accelerate, Lightning and a script's own branch for DDP.
    """
    for name in _OF_TORCHRUN:
        os.environ.pop(name, None)


def config_file() -> Path | None:
    """`PACELINE_CONFIG`: the configuration file of a script that torchrun starts; None if it is unset."""
    value = os.environ.get("PACELINE_CONFIG", "").strip()
    return Path(value) if value else None


# Names without a prefix, as scripts that compare one process with many have them.
_OF_BENCHMARKS = ("EPOCHS", "BATCH_SIZE", "NUM_WORKERS")


def benchmark_variables() -> dict[str, str]:
    """`EPOCHS=3` becomes `{"epochs": "3"}`: defaults of `paceline benchmark`, behind its flags."""
    return {name.lower(): v for name in _OF_BENCHMARKS if (v := os.environ.get(name, "").strip())}


def let_gloo_use_loopback() -> None:
    """Let gloo use loopback when all processes are on this host; a user's choice of interface is kept."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")


def ray_address() -> str | None:
    """`RAY_ADDRESS`, the cluster address that Ray's own commands read; None if unset."""
    return os.environ.get("RAY_ADDRESS", "").strip() or None


def ray_uses_tls() -> bool:
    """`RAY_USE_TLS`: Ray's processes know each other by certificates."""
    return os.environ.get("RAY_USE_TLS", "0") not in ("", "0")


# Ray reports how it is used unless disabled, and warns of what it may do differently one day.
RAY_START_S = 180
_QUIET_RAY = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}


def prepare_ray() -> None:
    """Must run before Ray is imported; values that the user has set are kept."""
    for name, value in _QUIET_RAY.items():
        os.environ.setdefault(name, value)
    # A cluster requires the token by default, but a client sends it only if this variable is set. A Ray that
    # is imported already does not read the variable again, and a cluster that it starts must not require it.
    if "ray" not in sys.modules and ((file := ray_token_file()) is None or file.exists()):
        os.environ.setdefault("RAY_AUTH_MODE", "token")


def ray_start_s() -> int:
    """How long a Ray that is started here may take."""
    value = os.environ.get(RAY_START, "")
    return int(value) if value.isdigit() else RAY_START_S


def host_timeout_s() -> float:
    """`PACELINE_HOST_TIMEOUT`; 0 when it is not set."""
    value = os.environ.get(HOST_TIMEOUT, "")
    return float(value) if value.isdigit() else 0.0


def ray_token_file() -> Path | None:
    """File of this user's Ray token; None if the environment has the token or its path."""
    is_said = os.environ.get("RAY_AUTH_TOKEN") or os.environ.get("RAY_AUTH_TOKEN_PATH")
    return None if is_said else Path.home() / ".ray" / "auth_token"


def state_folder() -> Path:
    """Folder of persistent state: `$XDG_STATE_HOME/paceline`, else `~/.local/state/paceline`."""
    folder = Path(os.environ.get("XDG_STATE_HOME", ""))
    return (folder if folder.is_absolute() else Path.home() / ".local" / "state") / "paceline"


def for_child(**extra: str) -> dict[str, str]:
    """This process's environment plus `extra`, for a child process."""
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
    """The same, with this process's `python` first in PATH."""
    ours = sys.executable.rpartition(os.sep)[0]
    return for_child(PATH=os.pathsep.join([ours, os.environ.get("PATH", os.defpath)]))


def set_default_variables(**names: str) -> None:
    """Set variables for a vendor's code in this process, unless the user set them."""
    for name, value in names.items():
        os.environ.setdefault(name, value)
