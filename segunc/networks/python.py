"""Networks that a function of the user's own makes: ``python:package.module:build``.

Such a network runs code, so nothing is run that the user did not agree to on this machine (:mod:`segunc.core.trust`): ``segunc import
--trust`` notes the factory with a hash of its code, the model folder records the hash too, and loading compares the three.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from segunc.core.errors import InputError, one_line
from segunc.core.trust import Code, agree, check_agreed, find_code, imported
from segunc.networks.description import NetworkDescription
from segunc.networks.sources import Found, Wishes


def build(description: NetworkDescription) -> tuple[nn.Module, int]:
    """Return the body as the factory makes it, and its stride (``stride`` among the options, 1 if it is not given)."""
    name, options = description.architecture, description.options
    code = find_code(name)
    if code.sha256 != (recorded := options.get("code_sha256")):
        hashes = f"{code.sha256[:12]} now, {str(recorded)[:12]} then"
        message = f"the code of {name} in {code.folder} has changed since the network was imported ({hashes})"
        raise InputError(message, hint="restore it, or import the network again")
    check_agreed(code, f"segunc import python:{name} --trust ...")
    return run(code, options.get("arguments", {})), int(options.get("stride", 1))


def read(name: str, wishes: Wishes) -> Found:
    """Return a network by the name of its factory, which gets the arguments and returns a module; see the module's text."""
    code = find_code(name)
    if not wishes.trust:
        raise InputError(
            f"python:{name} runs code of yours ({code.files} files in {code.folder})", hint="agree by --trust"
        )
    agree(code)
    arguments = dict(wishes.arguments)
    stride = int(arguments.pop("stride", 1))
    options = {"arguments": arguments, "stride": stride, "code_sha256": code.sha256}
    description = wishes.description("python", name, options=options)
    return Found(description, None if wishes.state is not None else run(code, arguments).state_dict())


def run(code: Code, arguments: dict[str, Any]) -> nn.Module:
    """Return what the factory makes of its arguments."""
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
