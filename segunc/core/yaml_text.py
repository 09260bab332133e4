"""Read YAML that comes from outside: numbers as in YAML 1.2, and no aliases."""

from __future__ import annotations

import re
from typing import Any

import yaml

from segunc.core.errors import InputError, one_line
from segunc.core.files import check_depth


class _Loader(yaml.SafeLoader):  # type: ignore[misc]
    """Reads numbers as YAML 1.2 writes them, 1e-3 for instance, and no aliases: a few lines of them
    stand for gigabytes."""

    aliases = False

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


_FLOAT = re.compile(r"[-+]?[0-9][0-9_]*(\.[0-9_]*)?[eE][-+]?[0-9]+$")
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+0123456789"))


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
