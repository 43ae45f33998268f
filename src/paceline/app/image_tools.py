"""Which helpers of other makers are on this machine, and how are they called? uv, hadolint."""

import os
import shutil
import sys
from pathlib import Path

from paceline import environ
from paceline.errors import MissingPackageError


def uv_command() -> list[str]:
    found = tool("uv")
    if found is None:
        raise MissingPackageError("resolving needs uv, which is not installed", "pip install uv")
    return [found]


def tool(name: str) -> str | None:
    """The program's path: on the search path, or beside this Python (a virtual environment not activated)."""
    beside = Path(sys.executable).parent / name
    return shutil.which(name) or (str(beside) if os.access(beside, os.X_OK) else None)


def uv_environment() -> dict[str, str]:
    """uv downloads no Python of its own, and trusts the certificates that pip was told to trust."""
    env = environ.for_child()
    env.setdefault("UV_PYTHON_DOWNLOADS", "never")
    if "PIP_CERT" in env:
        env.setdefault("SSL_CERT_FILE", env["PIP_CERT"])
    if "PIP_INDEX_URL" in env and "UV_DEFAULT_INDEX" not in env:
        env.setdefault("UV_INDEX_URL", env["PIP_INDEX_URL"])
    return env
