"""Secrets in text: where they are, and the text without them.

`redact(text)` replaces every secret by `***`; `secrets_in(text)` gives the spans and their kinds. A secret is
recognized in one of three ways, and every detector reports spans of the same original text:

* by its shape: tokens of well-known issuers, private keys, JSON Web Tokens, user and password in a URL;
* by the name that it is assigned to: `NAME=value`, `name: value`, `"name": "value"`, `--name value`;
* by the command or header around it: `docker login -p`, `curl -u`, `Authorization:`, netrc entries.

A value that refers to a secret elsewhere (`$TOKEN`, `<token>`, `***`) is none. All patterns are linear in the
length of the text. Where a value cannot be distinguished from prose, it is redacted.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from paceline.core.secret_names import NAME_SEPARATOR, is_random, is_reference, is_secret_name, is_weak_name

HIDDEN = "***"
Tree = TypeVar("Tree")


@dataclass(frozen=True, slots=True)
class Secret:
    """`text[start:end]` is a secret of this kind, such as "a GitHub token"."""

    kind: str
    start: int
    end: int


def redact(text: str) -> str:
    """The text with `***` for every secret in it. Redacting twice changes nothing more."""
    parts: list[str] = []
    end = 0
    for secret in secrets_in(text):
        parts += [text[end : secret.start], HIDDEN]
        end = secret.end
    return "".join([*parts, text[end:]])


def secrets_in(text: str) -> list[Secret]:
    """Secrets in text order, without nesting."""
    secrets = [secret for detect in _DETECTORS for secret in detect(text) if secret.start < secret.end]
    merged: list[Secret] = []
    for secret in sorted(secrets, key=lambda secret: (secret.start, -secret.end)):
        if merged and secret.start < merged[-1].end:
            before = merged[-1]
            merged[-1] = Secret(before.kind, before.start, max(before.end, secret.end))
        else:
            merged.append(secret)
    return merged


def tokens_in(text: str) -> list[Secret]:
    """Secrets recognizable by their shape alone: tokens, private keys, user and password in a URL."""
    return [secret for detect in (_private_keys, _by_shape, _in_urls) for secret in detect(text)]


def redact_json(value: Tree) -> Tree:
    """The same tree of lists and mappings with every text redacted, also by the key of the text."""
    return _redacted(value, "")  # type: ignore[return-value]  # the shape of a tree is kept


def _redacted(value: object, name: str) -> object:
    match value:
        case str() if name and is_secret_name(name) and not is_reference(value):
            return HIDDEN
        case str():
            return redact(value)
        case dict():
            return {key: _redacted(inner, str(key)) for key, inner in value.items()}
        case list() | tuple():
            return type(value)(_redacted(inner, name) for inner in value)
        case _:
            return value


def redact_lines(lines: Iterable[str]) -> Iterator[str]:
    """Line by line, for output that arrives so: a private key spans several lines."""
    redactor = LineRedactor()
    return (redactor.line(line) for line in lines)


class LineRedactor:
    """Redacts one stream of lines; between the lines it stores whether a private key is being written."""

    def __init__(self) -> None:
        self._is_within_key = False

    def line(self, line: str) -> str:
        if self._is_within_key:
            self._is_within_key = not _KEY_END.search(line) and _KEY_BODY.search(line) is not None
            if self._is_within_key or _KEY_END.search(line):
                return HIDDEN
        begin = _KEY_BEGIN.search(line)
        self._is_within_key = begin is not None and not _KEY_END.search(line, begin.end())
        return redact(line)


# ---- shapes ------------------------------------------------------------------------------------------------

# The start of a word; also behind an escaped line end or a terminal's colour code.
_START = r"(?:(?<![A-Za-z0-9])|(?<=\\[nrt])|(?<=[\[;][0-9]m)|(?<=[0-9][0-9]m))"
_MIXED = r"(?=[A-Za-z_-]{0,80}[0-9])(?=[a-z0-9_-]{0,80}[A-Z])"
_SHAPES: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (kind, re.compile(_START + pattern))
    for kind, pattern in (
        ("a Hugging Face token", r"(?:hf|api_org)_[A-Za-z0-9]{16,}"),
        ("an AWS access key", r"(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{16,}"),
        ("a GitHub token", r"(?:gh[pousr]_[A-Za-z0-9]{16,}|github_pat_[A-Za-z0-9_]{16,})"),
        ("a GitLab token", r"gl(?:pat|ptt|dt|rt|ft|cbt|soat|agent|imt|oas)-[A-Za-z0-9_.-]{16,}"),
        ("an API key", r"sk-(?:ant|proj|svcacct|admin|or|lf)-[A-Za-z0-9_-]{16,}"),
        ("an API key", r"sk-(?:[A-Za-z0-9]{20,}|" + _MIXED + r"[A-Za-z0-9_-]{20,})[A-Za-z0-9_-]*"),
        ("an API key", r"(?:sk|rk)_(?:live|test)_[A-Za-z0-9]{10,}"),
        ("a Slack token", r"(?:xox[a-z]|xapp)-[A-Za-z0-9-]{10,}"),
        (
            "a Google API key",
            r"(?:AIza[A-Za-z0-9_-]{30,}|GOCSPX-[A-Za-z0-9_-]{20,}|ya29\.[A-Za-z0-9_-]{20,})",
        ),
        ("an npm token", r"npm_[A-Za-z0-9]{20,}"),
        ("a PyPI token", r"pypi-(?:AgE[A-Za-z0-9_-]{16,}|" + _MIXED + r"[A-Za-z0-9_-]{32,})"),
        ("a Docker token", r"dckr_(?:pat|oat)_[A-Za-z0-9_-]{16,}"),
        ("an nvapi key", r"nvapi-[A-Za-z0-9_-]{20,}"),
        ("a signed token", r"eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]*"),
        ("a webhook", r"hooks\.slack\.com/(?:services|workflows)/[A-Za-z0-9/_-]{10,}"),
        ("a webhook", r"discord(?:app)?\.com/api/webhooks/[0-9]+/[A-Za-z0-9_-]{10,}"),
    )
)
_KEY_BEGIN = re.compile(r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----")
_KEY_END = re.compile(r"-----END [A-Z0-9 ]{0,40}-----")
_KEY_BODY = re.compile(r"^[^A-Za-z0-9+/=]*(?:[A-Za-z0-9+/=]+|[A-Za-z-]+: .*)?[^A-Za-z0-9+/=]*$")
_KEY_WORDS = re.compile(r"(?:(?:\s|\\n|[+#|>\"'-])*[A-Za-z0-9+/=]{16,})*")
# AWS secret keys have no prefix: 40 characters next to an access key id.
_AWS_SECRET = re.compile(
    r"(?<![A-Za-z0-9+/=_.-])(?=[A-Za-z/+]*[0-9])(?=[a-z0-9/+]*[A-Z])[A-Za-z0-9/+]{40}(?![A-Za-z0-9+/_.-])"
)


# A text without any of these holds no token of a known shape: most texts are not searched further.
_MARKS = (
    *(
        "hf_",
        "api_org_",
        "AKIA",
        "ASIA",
        "ABIA",
        "ACCA",
        "ghp_",
        "gho_",
        "ghu_",
        "ghs_",
        "ghr_",
        "github_pat_",
    ),
    *(
        "gl",
        "sk-",
        "sk_",
        "rk_",
        "xox",
        "xapp-",
        "AIza",
        "GOCSPX-",
        "ya29.",
        "npm_",
        "pypi-",
        "dckr_",
        "nvapi-",
    ),
    *("eyJ", "hooks.slack.com", "discord"),
)


def _by_shape(text: str) -> Iterator[Secret]:
    if not any(mark in text for mark in _MARKS):
        return
    for kind, shape in _SHAPES:
        for match in shape.finditer(text):
            yield Secret(kind, *match.span())
    if any(mark in text for mark in ("AKIA", "ASIA", "ABIA", "ACCA")):
        for match in _AWS_SECRET.finditer(text):
            yield Secret("an AWS secret key", *match.span())


def _private_keys(text: str) -> Iterator[Secret]:
    at = 0
    while begin := _KEY_BEGIN.search(text, at):
        ended = _KEY_END.search(text, begin.end())
        last = ended or _KEY_WORDS.match(text, begin.end()) or begin
        at = last.end()
        yield Secret("a private key", begin.start(), at)


# `user:password@`. A password may hold slashes, as AWS secret keys do; `host:8080/path@1.2` is none.
_USERINFO = re.compile(
    r"(?<![A-Za-z0-9])(?P<scheme>[A-Za-z][A-Za-z0-9+.-]{0,30})://"
    r"(?P<user>[^\s/@:\"'<>\[\]`]{0,200}"
    r"(?::(?![0-9]{1,5}(?:/|\s|$))[^\s@\"'<>`]{0,1000}@(?:[^\s/@\"'<>`?#]{0,200}@)*"
    r"|(?::[0-9]{1,5})?@(?:[^\s/@\"'<>`?#]{0,200}@)*))"
)
_OPEN_USERS = re.compile(r"(?:git|hg|oauth2|ssh|root|ubuntu|[a-z][a-z0-9]{0,2})")


def _in_urls(text: str) -> Iterator[Secret]:
    for match in _USERINFO.finditer(text):
        user, colon, password = match["user"][:-1].partition(":")
        is_harmless = is_reference(password) if colon else _is_open_user(match["scheme"], user)
        if colon and not is_reference(user) and is_reference(password):
            is_harmless = _SHAPES[0][1].search(user) is None
        if not is_harmless:
            start, end = match.span("user")
            yield Secret("a password inside of an address", start, end - 1)


def _is_open_user(scheme: str, user: str) -> bool:
    """`ssh://git@host` names a login; the user part of an https address alone most often is a token."""
    return "ssh" in scheme.lower() or is_reference(user) or _OPEN_USERS.fullmatch(user) is not None


# ---- assignments -------------------------------------------------------------------------------------------

_DOUBLE = r'"(?:\\.|[^"\\\n])*"'
_SINGLE = r"'[^'\n]*'"
_CLOSED = r"(?=[\s,;:)\]}]|$)"
_WORD = rf"(?:{_DOUBLE}{_CLOSED}|{_SINGLE}{_CLOSED}|(?:\\.|{_DOUBLE}|{_SINGLE}|[^\s\"'\\`]|\\$)+)"
# Possessive, from the start of a word: a long line of letters is read once.
_NAME = r"(?<![A-Za-z0-9_.-])(?P<name>[A-Za-z0-9_.-]++)"
_EQUALS = re.compile(
    rf"{_NAME}(?P<between>[\"']?[ \t]{{0,5}}:?={{1,3}}[ \t]{{0,5}})(?P<value>{_WORD}|[\"'][^\n]*)"
)
# The quote that opens before the name closes behind the value: -e "TOKEN=two words".
_QUOTED_PAIR = re.compile(
    r"(?P<quote>[\"'])-{0,2}(?P<name>[A-Za-z_][A-Za-z0-9_.-]{0,100})\s{0,3}[=:]\s{0,3}"
    r"(?P<value>(?!\s*[\"'])[^\"'\n]+)(?P=quote)"
)
_QUERY = re.compile(r"[?&;](?P<name>[A-Za-z0-9_.-]{1,60})=(?P<value>[^\s&\"'#<>`;]+)")
_KEYED = re.compile(
    rf"(?P<key>[\"'])(?P<name>[A-Za-z_][\w.-]{{0,100}})(?P=key)\s*:\s*(?P<value>{_DOUBLE}|'(?:\\.|[^'\\\n])*'|[^\s\"',}}\]\[{{]+)"
)
_ESCAPED_KEYED = re.compile(r"\\\"(?P<name>[A-Za-z_][\w.-]{0,100})\\\"\s*:\s*\\\"(?P<value>[^\"\\\n]+)\\\"")
_COLON = re.compile(rf"{_NAME}[\"']?[ \t]{{0,5}}:[ \t]{{1,5}}(?P<value>{_WORD})")
_TIGHT_COLON = re.compile(rf"{_NAME}:(?P<value>(?=[^\s\"'/]*[0-9]|[^\s\"'/]{{16}})(?!//)[^\s\"'/][^\s\"']*)")
_OWN_LINE = re.compile(
    r"^[ \t+#>|-]*(?P<name>[A-Za-z_][\w.-]{0,100})[ \t]*:[ \t]+(?P<value>[^\s\"'|>{\[&*!][^\n]*)$",
    re.MULTILINE,
)
_BLOCK = re.compile(
    r"^[+ -]?(?P<indent>[ \t]*)(?:- )?(?P<name>[A-Za-z_][\w.-]{0,100})[ \t]*:[ \t]+[|>][-+0-9]*[ \t]*\n"
    r"(?P<value>[+ -]?(?P=indent)[ \t]+[^\n]*(?:\n[+ -]?(?P=indent)[ \t]+[^\n]*)*)",
    re.MULTILINE,
)
_ENV_LINE = re.compile(
    r"(?:^[+ -]?[ \t]*(?i:ENV)|(?<![\w-])ENV)[ \t]+(?P<name>[A-Za-z_][\w.-]{0,100})[ \t]+"
    r"(?P<value>(?!=)(?:\\\r?\n|[^\n])+)",
    re.MULTILINE,
)
_FLAG = re.compile(
    rf"(?<![A-Za-z0-9])--?(?P<name>[A-Za-z_][A-Za-z0-9_.-]{{0,60}})(?:[\"']\s*,\s*|[ \t]+(?:\\\r?\n\s*)?)"
    rf"(?P<value>(?!-){_WORD})"
)
_SETTING = re.compile(rf"\b(?:set|setx|config|put)[ \t]+(?P<name>[^\s,;]{{1,120}})[ \t]+(?P<value>{_WORD})")
_PROSE = frozenset(
    (
        *("a", "an", "and", "are", "as", "at", "be", "both", "but", "by", "can", "cannot", "could", "does"),
        *("for", "from", "has", "have", "holds", "if", "in", "into", "is", "it", "its", "may", "must"),
        *("needs", "no", "not", "of", "on", "only", "or", "says", "should", "so", "that", "the", "them"),
        *("then", "there", "they", "this", "to", "too", "twice", "was", "were", "which", "while", "with"),
        *("without", "would", "wants"),
    )
)
_PLAIN_WORD = re.compile(r"[A-Za-z][a-z]*(?:-[a-z]+)*[.,;:!?)]*")


# Most texts hold none of these, and are read once.
_ANY_NAME = re.compile(
    r"token|secret|passw|passphrase|passcode|pass\b|pwd|key|credential|auth|sig|cookie|pat\b", re.I
)


def _assigned(text: str) -> Iterator[Secret]:
    if not _ANY_NAME.search(text):
        return
    for pattern in (
        _EQUALS,
        _QUOTED_PAIR,
        _QUERY,
        _KEYED,
        _ESCAPED_KEYED,
        _OWN_LINE,
        _BLOCK,
        _ENV_LINE,
    ):
        for match in _overlapping(pattern, text):
            yield from _named(match)
    for pattern in (_FLAG, _SETTING):
        for match in _overlapping(pattern, text):
            if match["value"].lower().rstrip(".,;:") not in _PROSE:
                yield from _named(match)
    for pattern in (_COLON, _TIGHT_COLON):
        for match in _overlapping(pattern, text):
            value = match["value"]
            # Prose also mentions tokens: a plain word after a colon is no secret.
            if len(value) >= 16 or not _PLAIN_WORD.fullmatch(value):
                yield from _named(match)


def _overlapping(pattern: re.Pattern[str], text: str) -> Iterator[re.Match[str]]:
    """Also matches that begin within the value of the one before: `--x a=TOKEN=b`."""
    at = 0
    while match := pattern.search(text, at):
        yield match
        at = match.start("value")


def _named(match: re.Match[str]) -> Iterator[Secret]:
    name = match["name"]
    if match.start("name") and match.string[match.start("name") - 1] == "\\":
        name = name[1:]  # behind an escaped line end
    value = match["value"]
    is_meant = is_secret_name(name) or (is_weak_name(name) and is_random(value))
    default = _DEFAULT.fullmatch(value.strip("\"'"))
    if not is_meant or (default is None and is_reference(value)) or value.strip("\"'") == HIDDEN:
        return
    if _is_pin(match):
        return
    start, end = match.span("value")
    if default is not None:
        start = start + value.index(default["value"])
        end = start + len(default["value"])
    elif value[0] in "\"'" and value[-1] == value[0] and len(value) > 1:
        start = start + 1
        end = end - 1
    if not is_reference(match.string[start:end]):
        yield Secret(f"the value of {name.strip('-')}", start, end)


# A version, as pip, conda and poetry pin it: `0.7.0`, `"^0.7"`, `$VERSION`.
_PIN = re.compile(
    r"[\s\"'^~<>!=]{0,5}+v?"
    r"(?:[0-9]{1,4}+(?P<rest>(?:\.(?:[0-9]{1,10}+|\*)){0,8}+)(?:\.?(?:a|b|rc|post|dev)[0-9]{0,10}+)?"
    r"(?:\+[a-z0-9.]{1,20}+)?|\$\{?\w{1,80}+\}?)"
    r"(?=[\s\"',;#&|)\]\\]|$)"
)


def _is_pin(match: re.Match[str]) -> bool:
    """`tiktoken==0.7.0` pins a package; with one `=`, only where `token` is the end of a longer word."""
    pin = _PIN.match(match.string, match.start("value"))
    if pin is None:
        return False
    parts = [word for word in NAME_SEPARATOR.split(match["name"]) if word]
    is_package = bool(parts) and parts[-1] != "token" and parts[-1].endswith("token")
    compares = "==" in (match.groupdict().get("between") or "")
    return compares or (is_package and bool(pin["rest"]))


_DEFAULT = re.compile(r"\$\{\w+:?[-=+](?P<value>[^{}$]+)\}")

# ---- commands and headers ----------------------------------------------------------------------------------

_AROUND: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (kind, re.compile(pattern, re.IGNORECASE))
    for kind, pattern in (
        (
            "an Authorization header",
            r"\b(?:proxy-)?authorization[\"']?\s*[:=]\s*[\"']?"
            r"(?!\{?(?:type|credentials|credentials_file):\s)"  # keys of Prometheus' configuration
            r"(?:(?:bearer|basic|token|digest|negotiate|apikey)\s+)?(?!(?:bearer|basic|token)\s)(?P<value>[^\s\"',;`]{4,}|AWS4-HMAC-SHA256[^\n\"']+)",
        ),
        ("an Authorization header", r"\bAWS4-HMAC-SHA256\s+(?P<value>Credential=[^\n\"']+)"),
        (
            "a bearer token",
            r"\bbearer\s+(?P<value>(?=[A-Za-z._~+/=-]{0,200}[0-9]|\S{24})[A-Za-z0-9._~+/=-]{8,})",
        ),
        (
            "a basic login",
            r"\bbasic\s+(?P<value>(?-i:(?=[a-z+/]{0,80}[0-9A-Z=]))[A-Za-z0-9+/]{8,}={0,2})(?![A-Za-z0-9._-])",
        ),
        (
            "a password in netrc",
            r"\blogin(?:\s|\\n)+\S+?(?:\s|\\n)+password(?:\s|\\n)+(?P<value>[^\s\\\"']+)",
        ),
        (
            "a password of a login",
            r"\blogin\b[^\n|;&]{0,300}?\s-p[ \t=]*(?P<value>\"[^\"\n]+\"|'[^'\n]+'|[^\s\"'$-][^\s\"']*)",
        ),
        (
            "a password of a login",
            r"\b(?:sshpass|mysql|mysqldump|mysqladmin)\b[^\n|;&]{0,200}?\s-p[ \t]?"
            r"(?P<value>\"[^\"\n]+\"|'[^'\n]+'|[^\s\"'$-][^\s\"']*)",
        ),
        (
            "a password of a login",
            r"\b(?:curl|wget|http|https|smbclient)\b[^\n|;&]{0,300}?\s(?:-u|-U|--user|--auth)[ \t=]*"
            r"[\"']?[^\s:\"'$]+[:%](?P<value>[^\s\"'$][^\s\"']*)",
        ),
        ("an API key", r"\bwandb\s+login\s+(?:--?\S+\s+)*(?P<value>[A-Za-z0-9_-]{20,})"),
        (
            "a password of a login",
            r"\b(?:echo|printf)\s+(?:-\w+\s+)*[\"']?(?P<value>[^\s\"'|$<>-][^\n\"'|<>]*?)[\"']?\s*\|"
            r"[^\n|]*(?:--password-stdin|--with-token|chpasswd|\bpasswd\b|--passphrase-fd)",
        ),
    )
)


_ANY_WORD = re.compile(
    r"authorization|AWS4|bearer|basic|login|sshpass|mysql|curl|wget|http|smbclient|echo|printf", re.I
)


def _around(text: str) -> Iterator[Secret]:
    if not _ANY_WORD.search(text):
        return
    for kind, pattern in _AROUND:
        for match in pattern.finditer(text):
            if not is_reference(match["value"]):
                yield Secret(kind, *match.span("value"))


_DETECTORS: tuple[Callable[[str], Iterator[Secret]], ...] = (
    _private_keys,
    _by_shape,
    _in_urls,
    _around,
    _assigned,
)
