"""Read YAML that comes from outside: numbers and truth values as people mean them, and no aliases.

YAML 1.1 takes 010 for 8, 12:30:00 for 45000 and no for false. Here all of these are texts, as in
YAML 1.2, and 0x10 and 1_000 are, too. So a text keeps its letters, and where a number or a truth
value is needed, the check of the value refuses the text and names its key.
"""

from __future__ import annotations

import re
from typing import Any, ClassVar

import yaml

from segunc.core.errors import InputError, one_line
from segunc.core.files import check_depth


class _Loader(yaml.SafeLoader):  # type: ignore[misc]
    """Reads decimal numbers, true and false, and no aliases: a few lines of them stand for
    gigabytes."""

    aliases = False
    yaml_implicit_resolvers: ClassVar[dict[str, Any]] = {}

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        """Return a mapping; YAMLError for a key that stands in it twice, of which one value would
        be lost in silence.
        """
        lines: dict[tuple[str, str], int] = {}
        for key_node, _ in node.value if isinstance(node, yaml.MappingNode) else ():
            if not isinstance(key_node, yaml.ScalarNode):
                continue
            key = (key_node.tag, key_node.value)
            line = key_node.start_mark.line + 1
            if key in lines:
                message = (
                    f"the key {key_node.value} is given twice, in lines {lines[key]} and {line}"
                )
                raise yaml.constructor.ConstructorError(None, None, message, key_node.start_mark)
            lines[key] = line
        return super().construct_mapping(node, deep)

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Return the next node; YAMLError for an alias."""
        if self.check_event(yaml.AliasEvent) and not self.aliases:
            event = self.peek_event()
            message = f"it holds the alias *{event.anchor}; write the values out in its place"
            raise yaml.constructor.ConstructorError(None, None, message, event.start_mark)
        return super().compose_node(parent, index)


class _Dumper(yaml.SafeDumper):  # type: ignore[misc]
    """Writes values out in every place, because they are read without aliases, and texts that
    :class:`_Loader` or YAML 1.1 take for something else in quotes."""

    def ignore_aliases(self, data: Any) -> bool:
        """Return True: no value is written as an alias."""
        return True


_SCALARS = {
    "null": (r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    "bool": (r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    "int": (r"[-+]?(0|[1-9][0-9]*)", list("-+0123456789")),
    "float": (
        r"[-+]?([0-9]+\.[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?|[-+]?[0-9]+[eE][-+]?[0-9]+"
        r"|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        list("-+.0123456789"),
    ),
    "merge": (r"<<", ["<"]),
}
"""Kinds of values that are no texts: their form, and the characters with which they begin."""
for _kind, (_form, _starts) in _SCALARS.items():
    for _class in (_Loader, _Dumper):
        _class.add_implicit_resolver(
            f"tag:yaml.org,2002:{_kind}", re.compile(rf"(?:{_form})$"), _starts
        )
_LOOKS_LIKE_VALUE = re.compile(
    r"[-+]?0[0-9_]+|[-+]?0[bxo][0-9a-f_]+|[-+]?[0-9][0-9_]*_[0-9_]*(\.[0-9_]*)?|yes|no|on|off",
    re.IGNORECASE,
)
VALUE_HINT = "write numbers in decimal digits alone, and true or false"


def looks_like_value(value: object) -> bool:
    """Return whether a value is a text that people may mean as a number or a truth value, such as
    010, 1_000 or yes.
    """
    return isinstance(value, str) and _LOOKS_LIKE_VALUE.fullmatch(value) is not None


class _OwnLoader(_Loader):
    """Reads a file of the package, which may hold aliases."""

    aliases = True


def parse_yaml(text: str, *, own: bool = False, hint: str = "see configs/ for examples") -> Any:
    """Return what a YAML text says.

    Args:
        text: the content of the file, or a word of the command line.
        own: the text is the package's and may hold aliases.
        hint: that of the message.

    Raises:
        InputError: the text is not YAML, is nested too deep, or holds an alias.
    """
    try:
        content = yaml.load(text, Loader=_OwnLoader if own else _Loader)
        check_depth(content)
    except (yaml.YAMLError, RecursionError) as error:
        raise InputError(f"it is not a YAML file ({one_line(error)})", hint=hint) from error
    except ValueError as error:
        raise InputError(f"it cannot be read ({error})", hint=hint) from error
    return content


def dump_yaml(content: Any) -> str:
    """Return plain values as a YAML text that :func:`parse_yaml` reads as the same values."""
    text: str = yaml.dump(content, Dumper=_Dumper, sort_keys=False, allow_unicode=True)
    return text
