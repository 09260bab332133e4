"""Configuration of the documentation, which ``make docs`` writes to ``docs/_build``."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
from collections.abc import Iterator
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx

project = "segunc"
author = "the segunc developers"
version = release = importlib.metadata.version("segunc")
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
source_suffix = {".md": "markdown", ".ipynb": "markdown"}
exclude_patterns = ["_build", "registered*", "witness", "study"]
myst_heading_anchors = 3
myst_enable_extensions = ["colon_fence"]
suppress_warnings = [
    "myst.xref_missing"
]  # links to files of the repository, which `to_repository` leaves as text
nitpicky = False
autodoc_member_order = "bysource"
autodoc_typehints = "description"

html_theme = "furo"
html_title = f"segunc {version}"
html_copy_source = False
html_show_copyright = False
html_show_sourcelink = False
html_theme_options = {"navigation_with_keys": True}
html_static_path = ["_static"]
html_css_files = ["site.css"]


def commands_page() -> str:
    """Return the reference of all verbs as Markdown, from the parser that the command line uses."""
    from segunc.cli.main import build_parser

    lines = ["# Commands", "", "Made from the same definitions as `segunc VERB --help-all`.", ""]
    verbs = next(
        action
        for action in build_parser()._actions
        if isinstance(action, argparse._SubParsersAction)
    )
    for verb, parser in verbs.choices.items():
        lines += [
            f"## {verb}",
            "",
            parser.description or "",
            "",
            "```console",
        ]
        lines += [
            f"$ {line.strip()}"
            for line in (parser.epilog or "").splitlines()
            if line.strip().startswith("segunc ")
        ]
        lines += ["```", ""]
        for group in parser._action_groups:
            actions = [
                action for action in group._group_actions if action.dest not in ("help", "help_all")
            ]
            if not actions:
                continue
            lines += [f"**{group.title}**", "", "| option | meaning |", "|---|---|"]
            lines += [_row(action) for action in actions]
            lines.append("")
    return "\n".join(lines)


def _row(action: argparse.Action) -> str:
    names = ", ".join(f"`{name}`" for name in action.option_strings) or f"`{action.dest}`"
    value = (
        ""
        if action.nargs == 0
        else f" {action.metavar or '|'.join(map(str, action.choices or [])) or 'VALUE'}"
    )
    meaning = str(action.help or "").replace("%%", "%").replace("|", "\\|").replace("\n", " ")
    return f"| {names}{value.replace('|', chr(92) + '|')} | {meaning} |"


def notebook_page(notebook: dict[str, Any]) -> Iterator[str]:
    """Yield the cells of a notebook as Markdown, with the outputs that it stores."""
    for cell in notebook["cells"]:
        text = "".join(cell["source"])
        yield text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```"
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            if "image/png" in data:
                yield f"![figure of the cell above](data:image/png;base64,{data['image/png']})"
            else:
                text = "".join(output.get("text") or data["text/plain"])
                yield f"```text\n{text.rstrip()}\n```"


def fill_in(app: Sphinx, name: str, source: list[str]) -> None:
    """Replace the text of the page of commands, and that of a notebook, which is JSON."""
    if name == "reference/commands":
        source[0] = commands_page()
    elif app.env.doc2path(name).suffix == ".ipynb":
        source[0] = "\n\n".join(notebook_page(json.loads(source[0])))


def to_repository(app: Sphinx, doctree: nodes.document, name: str) -> None:
    """Turn links to files outside the documentation into plain text."""
    for node in list(doctree.findall(nodes.reference)):
        if str(node.get("refuri", "")).startswith("..") and not node.get("internal"):
            node.replace_self(nodes.literal(text=node.astext()))


def setup(app: Sphinx) -> dict[str, Any]:
    """Fill in pages as they are read, and mend links after the build."""
    app.connect("source-read", fill_in)
    app.connect("doctree-resolved", to_repository)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
