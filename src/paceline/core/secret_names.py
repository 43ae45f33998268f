"""Names and values of secrets: whether a name holds a secret, and whether a value is one or refers to one."""

import re
from itertools import pairwise

_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
NAME_SEPARATOR = re.compile(r"[^A-Za-z0-9]+")
_SECRET_END = (
    *("password", "passwd", "passphrase", "passcode", "token", "secret", "credential", "credentials"),
    *("apikey", "accesskey", "secretkey", "privatekey", "authkey"),
)
_BEFORE_KEY = frozenset(
    (
        *("api", "access", "private", "secret", "auth", "encryption", "signing", "account", "master"),
        *("session", "kaggle", "wandb", "license", "shared"),
    )
)
# SECRET_NAME and TOKEN_LIMIT describe a secret; pad_token and num_tokens are of language models.
_ABOUT = frozenset(
    (
        *(
            "file",
            "path",
            "dir",
            "folder",
            "length",
            "name",
            "names",
            "arn",
            "type",
            "limit",
            "count",
            "size",
        ),
        *("header", "ttl", "url", "uri", "endpoint", "host", "user", "username", "expiry", "expires"),
        *("expiration", "timeout", "provider", "store", "ref", "manager", "policy", "mount", "stdin", "env"),
        *("format", "version", "enabled", "required", "from", "prefix", "suffix", "rotation", "index", "ids"),
    )
)
_OF_MODELS = frozenset(
    (
        *("pad", "eos", "bos", "cls", "unk", "sep", "mask", "special", "max", "min", "num", "per", "image"),
        *("audio", "video", "first", "last", "next", "prev", "start", "end", "stop", "begin", "each"),
        *("tokenizer",),
    )
)
_WEAK_NAMES = frozenset(("auth", "pwd", "pass", "pat", "sig", "signature", "cookie"))


def is_secret_name(name: str) -> bool:
    """HF_TOKEN, aws_secret_access_key, clientSecret, PGPASSWORD; not TOKEN_LIMIT, pad_token, tokenizer."""
    parts = [word.lower() for word in NAME_SEPARATOR.split(_CAMEL.sub("_", name)) if word]
    if not parts or parts[-1] in _ABOUT or not _OF_MODELS.isdisjoint(parts):
        return False
    if any(word.endswith(_SECRET_END) for word in parts):
        return parts[-1] != "id" or "key" in parts
    return any(key == "key" and word in _BEFORE_KEY for word, key in pairwise(parts))


def is_weak_name(name: str) -> bool:
    """`auth`, `key` and `sig` name a secret only if the value has the shape of one; GPG_KEY is public."""
    parts = [word.lower() for word in NAME_SEPARATOR.split(_CAMEL.sub("_", name)) if word]
    return parts == ["key"] or (bool(parts) and parts[-1] in _WEAK_NAMES)


_REFERENCE = re.compile(
    r"""
    | (?:[:/@,._-]*(?:\$\{?\w+\}?|\$\{\{[^}]*\}\}|\{\{[^}]*\}\}|\{\w*\}|%\w+%|<[^<>]*>))+[:/@,._-]*
    | \$\(.* | `.* | \$\{\w+:?[?].*
    | [*.x…]+ | \[.*\]? | \{ | \( | [|>][-+]?
    | \d{1,3} | true|false|yes|no|on|off|none|null|nil|undefined|optional|required
    | (?:VALUE|TOKEN|PASSWORD|SECRET|NAME|KEY|FILE|PATH|STRING|TEXT|USER|VAR)(?:\[.*)?
    | [a-z]+(?:-[a-z]+)*/[a-z]+(?:[._-][a-z]+)*  # a Secret and a key in it
    | (?:[a-z]+-)+(?:token|secret|password|credentials|key)
    | (?:type|id|name)=[\w.,=/${}-]* | /(?:run/secrets|var/run/secrets)/\S*
    """,
    re.VERBOSE,
)


def is_reference(value: str) -> bool:
    """A variable, a placeholder or a switch: nothing that must be hidden."""
    bare = value.strip().strip("\"'`\\,;").strip()
    return _REFERENCE.fullmatch(bare) is not None or bare.lower() in ("true", "false", "none", "null")


def is_random(value: str) -> bool:
    """At least 12 characters without a space, some of them digits or both cases of letters."""
    bare = value.strip("\"',;")
    if len(bare) < 12 or not re.fullmatch(r"[A-Za-z0-9+/=_.~%-]+", bare):
        return False
    has_digit = any(sign.isdigit() for sign in bare)
    return has_digit and any(sign.isalpha() for sign in bare)
