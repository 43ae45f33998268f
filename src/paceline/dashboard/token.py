"""Who may look? Whoever has the token: made anew each time, or kept in a file of its owner's."""

import secrets
from pathlib import Path

from paceline.coordinator.shell.private_files import read_private, write_private
from paceline.errors import ConfigError, Problem

SHORTEST = 16


def token_of(file: Path | None) -> str:
    if file is None:
        return secrets.token_urlsafe(24)
    if not file.exists():
        write_private(file, f"{secrets.token_urlsafe(24)}\n".encode())
    token = read_private(file).decode().strip()
    if len(token) < SHORTEST or not token.isascii() or any(c in token for c in ' ;,"\\'):
        raise ConfigError(
            [
                Problem(
                    f"{file} holds no token: {len(token)} characters",
                    "remove it, and another one is made; or write 16 letters and digits, or more",
                    "--token-file",
                )
            ]
        )
    return token
