"""Names of probably secret values, such as API_KEY, and secrets in shell commands."""

import re
import shlex

from tflaunch.plan.model import SecretSource

WORDS = frozenset((
    "KEY", "KEYS", "TOKEN", "TOKENS", "SECRET", "SECRETS", "PASSWORD", "PASSWORDS", "PASSWD", "PASS", "PASSPHRASE",
    "PASSCODE", "CREDENTIAL", "CREDENTIALS", "CREDS", "AUTH", "AUTHORIZATION", "APIKEY", "BEARER", "COOKIE", "DSN",
    "PAT", "JWT", "SESSIONID", "ACCOUNTKEY", "SIGNATURE", "SAS",
))  # fmt: skip
_ENDINGS = (
    "TOKEN", "SECRET", "PASSWORD", "PASSWD", "PASSPHRASE", "APIKEY", "ACCESSKEY", "SECRETKEY", "ACCOUNTKEY",
    "PRIVATEKEY", "AUTHKEY", "SESSIONID", "CREDENTIALS",
)  # fmt: skip


def looks_secret(name: str) -> bool:
    """Return whether a variable's name suggests a secret: API_KEY, not KEYBOARD."""
    parted = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)  # authToken
    words = [word for word in re.split(r"[^A-Z0-9]+", parted.upper()) if word]
    is_password = "PWD" in words and len(words) > 1  # PWD alone is the working directory
    return is_password or any(word in WORDS or word.endswith(_ENDINGS) for word in words)


def secret_in_shell(source: SecretSource) -> str:
    """Return the expression that a shell expands to a secret, or fails."""
    if source.file is not None:
        return f'"$(cat -- {shlex.quote(source.file)})"'
    return f'"${{{source.env}:?a secret of the spec is read from it}}"'
