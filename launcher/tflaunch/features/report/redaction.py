"""Replace secrets in text: given values, and those of a known context or form."""

import heapq
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote, urlsplit

from tflaunch.features.secret_names import WORDS, looks_secret

HIDDEN = b"***"
"""What a secret is replaced by."""

_SHORTEST = 6  # shorter values occur in too many harmless places
_OPTION_WORDS = (
    "password|passwd|passphrase|pwd|(?:auth|access|refresh|api)?token|secret|(?:api|access|account|secret|private|auth)?key"
    "|credentials?|dsn|bearer|jwt|pat|sas|sessionid"
)
_CAMEL = "[a-z][a-z0-9]{0,40}(?:Password|Passphrase|Token|Secret|Key|Credentials?|Jwt|SessionId)"  # --authToken
_OPTION = re.compile(rf"--?(?:(?:[A-Za-z0-9]{{1,40}}[-_]){{0,6}}(?i:{_OPTION_WORDS})|{_CAMEL})")
_SHORT_OPTION = "-p"  # in many programs the password, in many others a port or a path
_NO_PASSWORD = re.compile(r"[\d.:,/-]*|[./~].*")

# Text that looks secret by its context or its form, whatever the plan says. The first group of each pattern, the text
# before the value, is kept. All are bounded, so that hostile text takes no longer than other text, and begin with a
# literal where possible, which makes them ten times faster.
_IS = rb"[\"'\\]{0,4}[ \t]{0,3}[:=][ \t]{0,3}"
_VALUE = (  # quoted, quoted within a JSON string, or bare; a separate group tells which
    rb"(?:(\")|\\{1,3}\"|\\{0,3}')?)(?!(?:None|null|true|false)\b|\*\*\*)"
    rb"(?(2)(?:[^\"\\\n]|\\[^\n]){1,4000}|[^\s\"'\\;&]{1,4000})"
)
_MIXED = rb"(?=[^\s\"'\\]{0,200}\d)(?=[^\s\"'\\]{0,200}[A-Za-z])[^\s\"'\\;&,]{8,4000}"
_KINDS = ("api", "access", "account", "private", "auth", "encryption", "signing", "storage", "client", "refresh")
_OF_KIND = "|".join(f"(?<={kind}{dash}%s)" for kind in _KINDS for dash in ("", "[_-]"))
_NAMES = (
    rb"(?i:pass)(?i:word|wd|phrase|code)",
    rb"(?i:secret)(?i:[_-]?access)?(?i:[_-]?key)?",
    rb"(?i:key)(?i:%s)" % (_OF_KIND % (("key",) * 2 * len(_KINDS))).encode(),
    rb"(?i:token)(?i:%s)" % (_OF_KIND % (("token",) * 2 * len(_KINDS))).encode(),
    rb"(?i:session)[_-]?(?i:id|key|token)",
    rb"(?i:jwt)",
    rb"(?i:dsn)",
    rb"(?i:pwd)(?!%s[\"']?/)" % _IS,
)
_PLACES = (
    # https://user:PASSWORD@host, https://TOKEN@host
    rb"(://[^\s/:@\"'\\]{0,200}:)[^\s/@\"'\\]{1,1000}(?=@)",
    rb"(https?://)[^\s/:@\"'\\]{1,1000}(?=@)",
    # --token VALUE, --authToken=VALUE, also as two items of a list in JSON
    rb"(--?(?:(?:[A-Za-z0-9]{1,40}[-_]){0,6}(?i:%s)|%s)(?:=| |\",\s{0,40}\"))[^\s\"'\\]{1,4000}"
    % (_OPTION_WORDS.encode(), _CAMEL.encode()),
    rb"(\"-p\",\s{0,40}\")(?!(?:%s)\")(?:[^\"\\\n]|\\[^\n]){1,4000}" % _NO_PASSWORD.pattern.encode(),
    # API_KEY=VALUE, "API_KEY": "VALUE"
    rb"(\b(?:[A-Z0-9]{1,40}_){0,8}(?:%s)(?:_[A-Z0-9]{1,40}){0,4}(?:=|\": ?\"))[^\s\"'\\]{1,4000}"
    % "|".join(sorted(WORDS, key=len, reverse=True)).encode(),
    # password=VALUE, "password": "VALUE", Password=VALUE;, password: VALUE; also in JSON within JSON
    *(rb"(%s%s%s" % (name, _IS, _VALUE) for name in _NAMES),
    # token: VALUE, unless it is a plain word or number, like the tokens of a language model
    rb"((?i:token)%s(?:\\{0,3}[\"'])?)%s" % (_IS, _MIXED),
    # Authorization: Bearer VALUE
    rb"((?i:authorization)%s(?:\\{0,3}[\"'])?(?:(?i:bearer|basic|digest|token) )?)[^\s\"'\\]{1,4000}" % _IS,
    rb"(\b(?i:bearer) )%s" % _MIXED,
    # https://host/path?sig=VALUE
    rb"([?&](?i:sig|signature|sas|token|key|code|x-amz-(?:signature|credential|security-token)|x-goog-signature"
    rb"|(?:api|access|account|auth)[_-]?(?:key|token))=)[^\s&\"'\\<>]{1,4000}",
    # A private key, to its end or as far as it is present
    rb"(-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----)(?:[A-Za-z0-9+/=\s\\:,]|-(?!----)){1,16000}",
    # Tokens: Hugging Face, GitHub, GitLab, Google, Anthropic, OpenAI, Databricks, AWS, Slack, npm, PyPI, SendGrid,
    # Stripe, Telegram, and JSON Web Tokens
    rb"()hf_[A-Za-z0-9]{20,200}",
    rb"()github_pat_\w{20,200}",
    rb"()gh[pousr]_[A-Za-z0-9]{20,200}",
    rb"()AIza[\w-]{35}",
    rb"()ya29\.[\w-]{20,1000}",
    rb"()sk-(?:ant|proj|svcacct)-[\w-]{20,400}",
    rb"()dapi[0-9a-f]{32}",
    rb"()gl(?:pat|dt|ft|soat|rt|cbt|imt|ptt|agent|oas)-[\w-]{20,1000}",
    rb"()\b(?:AKIA|ASIA|ABIA|ACCA)[0-9A-Z]{16}\b",
    rb"()xox[abeoprs]-[\w-]{10,400}",
    rb"(hooks\.slack\.com/services/)[\w/]{20,200}",
    rb"()npm_[A-Za-z0-9]{36}",
    rb"()pypi-[\w-]{60,1000}",
    rb"()SG\.[\w-]{16,64}\.[\w-]{16,64}",
    rb"()[rs]k_live_[0-9A-Za-z]{20,200}",
    rb"()\b\d{8,10}:AA[\w-]{33}\b",
    rb"()eyJ[\w=-]{5,4000}\.[\w=-]{5,4000}(?:\.[\w+/=-]{0,4000})?",
)
_LONGEST_PLACE = 20_000


class Redactor:
    """Hides given values, then what looks secret by its context or its form."""

    def __init__(self, values: set[str]) -> None:
        """Prepare to hide values; those shorter than `_SHORTEST` are not hidden."""
        forms = {form for value in values for form in _forms(value) if len(form) >= _SHORTEST}
        ordered = sorted(forms, key=lambda form: (-len(form), form))  # longest first, as one may be a prefix of another
        self.longest = max([_LONGEST_PLACE, *map(len, ordered)])
        """The maximum length of a match, in bytes."""
        self.hidden = 0
        """The number of values hidden so far."""
        self._given = (b"()(?:" + b"|".join(map(re.escape, ordered)) + b")",) if ordered else ()

    def redact(self, text: str | bytes) -> bytes:
        """Return a complete text without secrets."""
        data = text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text
        # In separate passes, as a given value may continue after what looks like its end in a context.
        return self._replace(_PLACES, self._replace(self._given, data))

    def _replace(self, patterns: Sequence[bytes], data: bytes) -> bytes:
        shown, position = [], 0
        matches = (re.finditer(pattern, data) for pattern in patterns)
        for match in heapq.merge(*matches, key=lambda match: match.span()):
            start, end = match.span()
            if start >= position:
                kept = match[1]  # the text before the value
                shown += [data[position:start], kept, HIDDEN]
                self.hidden += data[start + len(kept) : end] != HIDDEN  # otherwise the first pass has counted it
            position = max(position, end)
        return b"".join([*shown, data[position:]])


def _forms(value: str) -> set[bytes]:
    """Return a value as it is, by line, in JSON (also twice), and in a URL."""
    forms = {value, value.strip(), *(line.strip() for line in value.splitlines()), quote(value, safe="")}
    for is_ascii in (True, False):
        once = json.dumps(value, ensure_ascii=is_ascii)[1:-1]
        forms |= {once, json.dumps(once, ensure_ascii=is_ascii)[1:-1]}
    return {form.encode("utf-8", "surrogateescape") for form in forms}


def secrets_in_environment(environment: Mapping[str, Any]) -> set[str]:
    """Return the values of secret variables, and passwords in URLs of others."""
    found = set()
    for name, value in environment.items():
        found |= {str(value)} if looks_secret(name) else _passwords(str(value))
    return found


def secrets_in_command(argv: list[Any]) -> set[str]:
    """Return the secrets in a command: ``--token=VALUE`` and ``--token VALUE``."""
    found, words = set(), [str(word) for word in argv]
    for word, following in zip(words, [*words[1:], ""], strict=False):
        found |= _passwords(word)
        option, equals, value = word.partition("=")
        name = option.lstrip("-")
        if equals and (option.startswith("-") or name.isidentifier()) and looks_secret(name):
            found.add(value)
        if _OPTION.fullmatch(word) and not following.startswith("-"):
            found.add(following)
        if word == _SHORT_OPTION and not _NO_PASSWORD.fullmatch(following) and not following.isalpha():
            found.add(following)
    return found


def _passwords(text: str) -> set[str]:
    found = set()
    for url in re.findall(r"\w{1,20}://[^\s\"'<>]{1,1000}", text):
        try:
            password = urlsplit(url).password
        except ValueError:
            continue
        if password:
            found.add(password)
    return found
