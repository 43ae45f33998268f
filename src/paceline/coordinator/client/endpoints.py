"""Endpoint discovery: addresses and credentials from options, environment, or default files.

Tokens are stored in one file per user, so that nodes and commands of one user on one machine
find each other without configuration. See docs/guides/coordinator.md.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import assert_never

from paceline.coordinator.client import nodes_file
from paceline.coordinator.client.aio import Client, NotAllowedError
from paceline.coordinator.client.blocking import BlockingClient
from paceline.coordinator.methods import path
from paceline.coordinator.run_endpoint import Coordinators, Credentials, TlsFolder, TokenFile
from paceline.coordinator.server import security, tokens
from paceline.coordinator.server.access_policy import Role, describe_roles, roles_for
from paceline.coordinator.server.tls import Certificate
from paceline.coordinator.server.tokens import Token, Tokens
from paceline.core import environ
from paceline.core.disk import SecretError
from paceline.core.errors import ClusterOptionError, Problem

# Commands do not share failed connections: a node that was down a moment ago may be up now.
_OPTIONS = [("grpc.use_local_subchannel_pool", 1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointOptions:
    """The user's options about which coordinator to call."""

    usual_folder: Path  # the default, without options and environment
    at: tuple[str, ...] = ()
    folder: Path | None = None
    token_file: Path | None = None
    tls_dir: Path | None = None
    tls_name: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoints:
    """Addresses of a coordinator, and the credentials to call it, as they were read."""

    addresses: tuple[str, ...]
    access: Token | Certificate

    def client(self, patience_s: float = 10.0) -> Client:
        return Client(
            self.addresses,
            lambda address: security.open_channel(address, self.access, _OPTIONS),
            metadata=security.call_metadata(self.access),
            patience_s=patience_s,
        )

    def require_role(self, name: str, purpose: str) -> None:
        """NotAllowedError if the certificate is of a role that may not call `name`, such as Runs.Create.

        The role of a token is known to the nodes only, which refuse it in the same way.
        """
        if isinstance(self.access, Token):
            return
        roles = roles_for(path(*name.split(".")))
        identity = self.access.identity
        if identity.role not in roles:
            raise NotAllowedError(
                f"the certificate of {identity.name!r} has the role {identity.role.value}, and to {purpose} "
                f"needs {describe_roles(roles)}",
                "choose another with --tls-name NAME, or make one: "
                "`paceline coordinator init-pki --add --client NAME=admin`",
                "PERMISSION_DENIED",
            )

    def blocking_client(self, patience_s: float = 10.0) -> BlockingClient:
        return BlockingClient(self.addresses, self.access, patience_s=patience_s)


def open_coordinators(coordinators: Coordinators, role: Role = Role.ADMIN) -> Endpoints:
    """Read the credentials. `role`: the preferred one, if several are stored there."""
    match coordinators.credentials:
        case TokenFile(path):
            access = security.client_access(token_file=path, role=role)
        case TlsFolder(folder, name):
            access = security.client_access(tls_dir=folder, tls_name=name, role=role)
        case _:
            assert_never(coordinators.credentials)
    return _checked(Endpoints(addresses=coordinators.addresses, access=access))


def choose_coordinators(
    at: Sequence[str] = (),
    *,
    token_file: Path | None = None,
    tls_dir: Path | None = None,
    tls_name: str | None = None,
) -> Coordinators | None:
    """The coordinator of a run, by options, then by the environment; None: neither names one.

    The credentials are read later, by every process for itself: `open_coordinators`.
    """
    addresses = tuple(address for text in at for address in _addresses(text, "--coordinator"))
    if at and not addresses:
        raise _option_problem("--coordinator has no address", "write --coordinator HOST:PORT")
    if tls_dir is not None and token_file is not None:
        raise _option_problem("--tls-dir and --token-file exclude each other", "give one of them")
    addresses = addresses or addresses_from_environment()
    if not addresses:
        if (tls_dir or token_file) is not None or tls_name is not None:
            raise _option_problem(
                "there are credentials, but no coordinator to show them to",
                "add --coordinator HOST:PORT, or set PACELINE_COORDINATOR",
            )
        return None
    credentials: Credentials
    if token_file is not None:
        credentials = TokenFile(token_file)
    elif (folder := tls_dir or environ.tls_dir()) is not None:
        credentials = TlsFolder(folder, tls_name or environ.tls_name())
    else:
        credentials = TokenFile(user_token_file())
    return Coordinators(addresses=addresses, credentials=credentials)


def _option_problem(message: str, hint: str) -> ClusterOptionError:
    return ClusterOptionError([Problem(message, hint, "--coordinator")])


def find_endpoints(options: EndpointOptions) -> Endpoints:
    addresses = options.at
    folder = options.folder
    if not addresses and folder is None:
        addresses = addresses_from_environment()
        if not addresses:
            folder = options.usual_folder
    if not addresses:
        assert folder is not None, "a folder is given, or the default is used"
        addresses = tuple(nodes_file.read_nodes_file(folder).nodes.values())
    return _checked(Endpoints(addresses=addresses, access=_client_access(options, folder)))


def _checked(found: Endpoints) -> Endpoints:
    if isinstance(found.access, Token):
        for address in found.addresses:
            security.check_private(address, "init-pki")
    return found


def _client_access(options: EndpointOptions, folder: Path | None) -> Token | Certificate:
    """Options first, then the environment: a certificate, else a token, else that of the folder or user."""
    tls_name = options.tls_name or environ.tls_name()
    if options.tls_dir is not None:
        return security.client_access(tls_dir=options.tls_dir, tls_name=tls_name)
    if options.token_file is not None:
        return security.client_access(token_file=options.token_file)
    if (tls_dir := environ.tls_dir()) is not None:
        return security.client_access(tls_dir=tls_dir, tls_name=tls_name)
    if environ.token() is not None:
        return security.client_access()
    folder_tokens = None if folder is None else folder / tokens.TOKENS_NAME
    path = folder_tokens if folder_tokens is not None and folder_tokens.exists() else user_token_file()
    if not path.exists():
        raise SecretError(
            f"there is no token in {path}, and the coordinator requires one",
            "start a node on this machine as this user, or give --token-file FILE or --tls-dir DIR",
        )
    return security.client_access(token_file=path)


def node_credentials(
    node: int, addresses: Sequence[str], data_dir: Path, token_file: Path | None, tls_dir: Path | None
) -> Tokens | Certificate:
    """Credentials of the node at the first address. A token never leaves loopback."""
    if tls_dir is None:
        for address in addresses:
            security.check_private(address, f"init-pki --out pki --node {node}=HOST")
        token_file = token_file or user_token_file()
        try:
            token_file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise SecretError(
                f"cannot create the folder {token_file.parent}: {error.strerror}",
                "give a file where this user may write, with --token-file FILE",
            ) from error
    return security.node_security(addresses[0], node, data_dir, token_file=token_file, tls_dir=tls_dir)


def user_token_file() -> Path:
    return environ.config_folder() / tokens.TOKENS_NAME


def addresses_from_environment() -> tuple[str, ...]:
    """PACELINE_COORDINATOR: addresses, or the folder of `paceline coordinator up`."""
    return _addresses(environ.coordinator() or "", "PACELINE_COORDINATOR")


def _addresses(text: str, where: str) -> tuple[str, ...]:
    if text and (Path(text) / nodes_file.FILE_NAME).exists():
        return tuple(nodes_file.read_nodes_file(Path(text)).nodes.values())
    return split_addresses(text, where)


def split_addresses(text: str, where: str) -> tuple[str, ...]:
    """`HOST:PORT,HOST:PORT` as addresses; none for an empty text."""
    addresses = tuple(part.strip() for part in text.split(",") if part.strip())
    for address in addresses:
        if not nodes_file.is_address(address):
            message = f"{address!r} is not an address"
            raise ClusterOptionError([Problem(message, "write HOST:PORT, for example 127.0.0.1:7401", where)])
    return addresses
