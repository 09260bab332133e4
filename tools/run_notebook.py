"""Execute the code cells of a notebook in one namespace and store what they print and draw, without
Jupyter.

    python -m tools.run_notebook docs/start.ipynb

The site shows what is stored (docs/conf.py), and a test compares it with a run of its own.
"""

from __future__ import annotations

import ast
import base64
import contextlib
import io
import json
import sys
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure
from PIL import Image


def execute(notebook: dict[str, Any]) -> None:
    """Replace the outputs of all code cells by those of this run; an error of a cell is raised."""
    matplotlib.use("Agg")
    from matplotlib import pyplot

    namespace: dict[str, Any] = {"__name__": "__main__"}
    code = (cell for cell in notebook["cells"] if cell["cell_type"] == "code")
    for number, cell in enumerate(code, 1):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            value = run_cell("".join(cell["source"]), f"cell {number}", namespace)
        cell["execution_count"], cell["outputs"] = number, []
        if printed.getvalue():
            text = printed.getvalue().splitlines(keepends=True)
            cell["outputs"].append({"output_type": "stream", "name": "stdout", "text": text})
        for figure in map(pyplot.figure, pyplot.get_fignums()):
            data = {"image/png": png(figure), "text/plain": ["<Figure>"]}
            cell["outputs"].append({"output_type": "display_data", "metadata": {}, "data": data})
        pyplot.close("all")
        if value is not None:
            cell["outputs"].append(shown(value, number))


def run_cell(source: str, name: str, namespace: dict[str, Any]) -> object:
    """Run a cell and return the value of its last line, which a notebook shows.

    The value is None where the last line is no expression, or one of a figure of pyplot: its text
    says nothing, and the figure is shown already.
    """
    tree = ast.parse(source, name)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, name, "exec"), namespace)
    if last is None:
        return None
    value: object = eval(compile(ast.Expression(last.value), name, "eval"), namespace)
    return None if type(value).__module__.startswith("matplotlib.") else value


def shown(value: object, number: int) -> dict[str, Any]:
    """Return the output that shows the value of a cell: its picture if it is a figure, and its
    text otherwise.
    """
    output: dict[str, Any] = {"output_type": "execute_result", "execution_count": number}
    output["metadata"] = {}
    if isinstance(value, Figure):
        output["data"] = {"image/png": png(value), "text/plain": ["<Figure>"]}
    else:
        output["data"] = {"text/plain": repr(value).splitlines(keepends=True)}
    return output


def png(figure: Any) -> str:
    """Return a figure as PNG of 256 colours in base64."""
    drawn, small = io.BytesIO(), io.BytesIO()
    figure.savefig(drawn, format="png", dpi=110, facecolor="white")
    Image.open(drawn).convert("RGB").quantize(256).save(small, "PNG", optimize=True)
    return base64.b64encode(small.getvalue()).decode()


def main(path: Path) -> None:
    notebook = json.loads(path.read_text("utf-8"))
    execute(notebook)
    path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", "utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
