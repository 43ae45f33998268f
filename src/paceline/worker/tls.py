"""TLS between the participants of a run on several hosts, with certificates that they make themselves.

A participant that listens makes a certificate for its address. The others receive it by a channel that is
authenticated already, from the launcher or the coordinator, and accept no other. The key leaves the process
only for a moment, in a private folder, because ssl reads it from a file.

A certificate proves to a client that it talks to the participant that it means. It does not prove who the
client is: each protocol checks that by the secret of the run, inside of the encrypted connection.
"""

import ssl
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from paceline.coordinator.server.tls import general_name
from paceline.core.clock import unix_now_s

_LASTS = timedelta(days=365)  # longer than a run


def server_tls_context(host: str) -> tuple[ssl.SSLContext, str]:
    """(what a server listens with, the certificate by which it is known) for this IP address or name."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "paceline run")])
    now = datetime.fromtimestamp(unix_now_s(), UTC)
    signed = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))  # clocks differ
        .not_valid_after(now + _LASTS)
        .add_extension(x509.SubjectAlternativeName([general_name(host)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    certificate = signed.public_bytes(serialization.Encoding.PEM)
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    with tempfile.TemporaryDirectory() as folder:  # readable for this user alone
        file = Path(folder) / "identity.pem"
        file.write_bytes(private + certificate)
        context.load_cert_chain(file)
    return context, certificate.decode()


def client_tls_context(certificate: str) -> ssl.SSLContext:
    """TLS context of a peer, which trusts this certificate alone."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=certificate)
    return context
