"""Write readable YAML that is unambiguous for every parser. Pure."""

import re
from typing import Any

import yaml

_LIKE_A_NUMBER = re.compile(r"[-+.0-9].*|.")  # or like a boolean, as some parsers take `y` and `n`


class _Dumper(yaml.SafeDumper):
    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, indentless=False)

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else "'" if _LIKE_A_NUMBER.fullmatch(text) else None
    if not text.replace("\n", "").isprintable():
        style = '"'  # the only style that keeps U+0085 and the like: other styles turn them into line breaks
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)


def written(head: str, *documents: dict[str, Any]) -> str:
    """Return documents as YAML, preceded by ``head`` as comments."""
    comments = "".join(f"# {line}\n" for line in head.splitlines())
    return comments + yaml.dump_all(documents, Dumper=_Dumper, sort_keys=False, width=1_000_000, allow_unicode=True)
