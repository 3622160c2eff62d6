"""What a spec must not say in plain text, because it is written down and shown: secrets.

Known by the name of the variable that it is put into, by the form of a well-known token, as the
password inside a URL, or as the value of an option like ``--password``. Not for: finding every
secret; a random word that nothing names looks like any other.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_NAME = re.compile(
    r"(?:^|_)(?:PASSWORD|PASSWD|SECRET|TOKEN|CREDENTIALS?|(?:API|ACCESS|SECRET|PRIVATE)_?KEY)"
    r"(?:_ID)?$",
    re.IGNORECASE,
)
_FORMS = (
    # RFC 3986, section 3.2.1: user:password before the host. `$PW` and `{{ pw }}` are references.
    (
        "a URL with a password",
        re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^\s/:@]*:(?![$<{])[^\s/@]+@"),
    ),
    # https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_identifiers.html
    ("an access key of AWS", re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b")),
    # https://github.blog/2021-04-05-behind-githubs-new-authentication-token-formats/
    ("a token of GitHub", re.compile(r"\b(?:gh[pousr]_[A-Za-z0-9]{30,}|github_pat_\w{30,})")),
    # https://huggingface.co/docs/hub/security-tokens: 34 letters, seen
    ("a token of Hugging Face", re.compile(r"\bhf_[A-Za-z0-9]{30,}\b")),
    # https://api.slack.com/authentication/token-types
    ("a token of Slack", re.compile(r"\bxox[abeoprs]-[A-Za-z0-9-]{10,}")),
    # RFC 7468, sections 10 and 11
    ("a private key", re.compile(r"-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY-----")),
)
_OPTION = re.compile(
    r"--?(?:[a-z]+[-_])*(?:password|passwd|secret|"
    r"(?:api|auth|access|bearer|refresh|hf|hub|github|gitlab|slack|wandb)[-_]?token|"
    r"(?:api|access|secret|private)[-_]?key)|--?token",
    re.IGNORECASE,
)
_NO_SECRET = re.compile(r"[$<{@/].*|true|false|yes|no|none|null|[0-9]{1,3}|", re.IGNORECASE)
"""Values of such an option that are none: references, paths, switches, small numbers, nothing."""
REFERENCE = "a reference, in env: {secretName, key} of a secret that holds it"

POD_REFERENCE = "a reference, in env: valueFrom.secretKeyRef of a secret that holds it"
"""The same in the words of Kubernetes."""


def looks_secret(name: str) -> bool:
    """Whether a variable of this name usually holds a secret."""
    return _NAME.search(name) is not None


def secret_in(text: str) -> str | None:
    """What of a secret stands in a text, by its form; None where nothing does."""
    return next((what for what, form in _FORMS if form.search(text)), None)


def secret_option(words: Sequence[str]) -> tuple[int, str] | None:
    """(number of the word, option) where an option of a command line is given a secret.

    A word may be a whole line of a shell.
    """
    pieces = [(number, piece) for number, word in enumerate(words) for piece in word.split()]
    for at, (number, piece) in enumerate(pieces):
        option, joined, value = piece.partition("=")
        if not joined and at + 1 < len(pieces):
            following = pieces[at + 1][1]
            value = "" if following.startswith("-") else following
        known = _OPTION.fullmatch(option) is not None
        if known and not _NO_SECRET.fullmatch(value.strip("'\"")):
            return number, option
    return None


def secrets_within(value: Any, path: str) -> Iterator[tuple[str, str]]:
    """(path, what) of each secret that a part of a pod gives its containers, however deep.

    By the name of a variable, which ``{name, value}`` or a mapping under ``env`` sets, and by the
    options of ``command`` and ``args``. Not by form: that is looked for in every text.
    """
    if isinstance(value, (list, tuple)):
        for number, item in enumerate(value):
            yield from secrets_within(item, f"{path}[{number}]")
    elif isinstance(value, Mapping):
        yield from _of_pair(value, path)
        for key, inner in value.items():
            if key in ("command", "args"):
                yield from _of_words(inner, f"{path}.{key}")
            elif key == "env" and isinstance(inner, Mapping):
                for name, given in inner.items():
                    yield from _of_pair({"name": name, "value": given}, path, f"env.{name}")
            yield from secrets_within(inner, f"{path}.{key}")


def _of_pair(pair: Mapping[Any, Any], path: str, field: str = "value") -> Iterator[tuple[str, str]]:
    name, value = pair.get("name"), pair.get("value")
    plain = isinstance(value, (str, int, float)) and value != ""
    if isinstance(name, str) and looks_secret(name) and plain:
        yield f"{path}.{field}", "a plain value of what looks like a secret"


def _of_words(line: Any, path: str) -> Iterator[tuple[str, str]]:
    words = [line] if isinstance(line, str) else line if isinstance(line, (list, tuple)) else []
    given = secret_option([str(word) for word in words])
    if given is not None:
        at = path if isinstance(line, str) else f"{path}[{given[0]}]"
        yield at, f"a plain value of {given[1]}, which looks like a secret"
