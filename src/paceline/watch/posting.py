"""How is a message posted to an address of the web? To that one only, and no error names a secret.

The path of a webhook's address is its password: an error says the host, and never more. A redirect is
refused, as it would turn the message into a question that somebody else answers with 200.
"""

import http.client
import json
import urllib.error
import urllib.request
from typing import IO
from urllib.parse import urlsplit

from paceline.errors import PacelineError
from paceline.plan.codec import Json

MOST_BYTES = 65_536  # of an answer that nobody reads


class NotDeliveredError(PacelineError):
    """A message about alerts did not arrive, however often it was tried."""

    code = "E320"


def not_delivered(what: str, hint: str = "try it: paceline alerts test") -> NotDeliveredError:
    return NotDeliveredError(f"a message about alerts was not delivered: {what}", hint)


def without_secret(url: str) -> str:
    """As much of an address as a log may know."""
    try:
        parts = urlsplit(url)
        port = "" if parts.port is None else f":{parts.port}"
        return f"{parts.scheme}://{parts.hostname or '?'}{port}/…"
    except ValueError:
        return "an address that cannot be read"


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: http.client.HTTPMessage,
        newurl: str,
    ) -> None:
        return None  # so it becomes an HTTPError


def post(url: str, body: Json, timeout_s: float) -> None:
    """NotDeliveredError unless the address itself took it."""
    where = without_secret(url)
    if not url.startswith(("http://", "https://")):
        raise not_delivered(f"{where} is no address of the web")
    opener = urllib.request.build_opener(_NoRedirect)
    try:
        request = urllib.request.Request(
            url, json.dumps(body).encode(), {"Content-Type": "application/json"}, method="POST"
        )
        with opener.open(request, timeout=timeout_s) as answer:
            answer.read(MOST_BYTES)
    except urllib.error.HTTPError as error:
        with error:
            raise not_delivered(f"{where} answered {error.code}") from None
    except urllib.error.URLError as error:
        raise not_delivered(f"{where}: {error.reason}") from None
    except OSError as error:
        raise not_delivered(f"{where}: {error}") from None
    except (http.client.HTTPException, ValueError) as error:
        # Their words may hold the address.
        raise not_delivered(f"{where}: {type(error).__name__}") from None
