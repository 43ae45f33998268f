"""How do workers on other hosts know that a parameter server is theirs? By a certificate made for this run.

The server's actor makes it, the launcher hands it to the workers, and nobody else's is accepted. The key
never leaves the actor's process but for a moment in a private folder, because ssl reads it from a file only.
"""

import ssl
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from paceline.clock import unix_now_s
from paceline.coordinator.shell.pki import general_name

_LASTS = timedelta(days=365)  # longer than a run


def serving_at(host: str) -> tuple[ssl.SSLContext, str]:
    """(what a server listens with, the certificate by which it is known) for this IP address or name."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "paceline run")])
    now = datetime.fromtimestamp(unix_now_s(), UTC)
    made = (
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
    certificate = made.public_bytes(serialization.Encoding.PEM)
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    with tempfile.TemporaryDirectory() as folder:  # readable for this user alone
        file = Path(folder) / "identity.pem"
        file.write_bytes(private + certificate)
        context.load_cert_chain(file)
    return context, certificate.decode()


def trusting(certificate: str) -> ssl.SSLContext:
    """What a worker connects with: it knows this one server, and no other."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=certificate)
    return context
