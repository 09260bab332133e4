"""Networks that a function of the user's own makes: ``python:package.module:build``.

Such a network runs code, so nothing is run that the user did not agree to on this machine (:mod:`segunc.core.trust`): ``segunc import
--trust`` notes the factory and its folder, and loading compares both.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from segunc.core.errors import InputError, one_line
from segunc.core.trust import Code, agree, check_agreed, find_code, imported
from segunc.networks.description import NetworkDescription
from segunc.networks.sources import Found, Wishes

KIND = "python"


def build(description: NetworkDescription) -> tuple[nn.Module, int]:
    """Return the body as the factory makes it, and its stride (``stride`` among the options, 1 if it is not given).

    Raises:
        InputError: the factory is not trusted on this machine, or fails.
    """
    name, options = description.architecture, description.options
    code = find_code(name)
    check_agreed(code, f"segunc import python:{name} --trust ...")
    return run(code, options.get("arguments", {})), int(options.get("stride", 1))


def read(name: str, wishes: Wishes) -> Found:
    """Return a network by the name of its factory, which gets the arguments and returns a module; see the module's text."""
    code = find_code(name)
    if not wishes.trust:
        raise InputError(f"python:{name} runs code of yours in {code.folder}", hint="agree by --trust")
    agree(code)
    arguments = dict(wishes.arguments)
    stride = int(arguments.pop("stride", 1))
    options = {"arguments": arguments, "stride": stride}
    description = wishes.description(KIND, name, options=options)
    return Found(description, None if wishes.state is not None else run(code, arguments).state_dict())


def run(code: Code, arguments: dict[str, Any]) -> nn.Module:
    """Return what the factory makes of its arguments.

    Raises:
        InputError: it is not in its module, raises, or makes no module.
    """
    name = code.name
    try:
        with imported(code) as factory:
            made = factory(**arguments) if callable(factory) else None
    except Exception as error:  # whatever the user's code raises
        raise InputError(f"{name} raises {one_line(error)}") from error
    if not isinstance(made, nn.Module):
        what = f"makes {type(made).__name__}" if callable(factory) else "is no function of its module"
        raise InputError(f"{name} {what}, not a torch module", hint="name it as package.module:function")
    return made
