"""Which norm sites are stochastic."""

from __future__ import annotations

import re
from collections.abc import Sequence

from segunc.core.errors import InputError

ENCODER_SEGMENTS = ("encoder", "backbone")


def in_scope(scope: str, names: Sequence[str]) -> list[bool]:
    """One flag for each site name.

    Args:
        scope: ``all``, ``encoder``, ``decoder`` (what is not the encoder), ``last:N`` sites, ``every:N``-th site, or
            a regular expression that is searched in the names.
        names: site names in network order.

    Raises:
        InputError: an unknown form, or no site matches.
    """
    encoder = [bool(set(name.split(".")) & set(ENCODER_SEGMENTS)) for name in names]
    if scope == "all":
        flags = [True] * len(names)
    elif scope in ("encoder", "decoder"):
        if not any(encoder):
            raise InputError(
                f"scope '{scope}'", "a network with a part named encoder or backbone", "give a regular expression"
            )
        flags = encoder if scope == "encoder" else [not e for e in encoder]
    elif match := re.fullmatch(r"(last|every):(\d+)", scope):
        count = int(match[2])
        if count < 1:
            raise InputError(f"scope '{scope}'", "a number of at least 1", "")
        if match[1] == "last":
            flags = [i >= len(names) - count for i in range(len(names))]
        else:
            flags = [i % count == 0 for i in range(len(names))]
    else:
        try:
            pattern = re.compile(scope)
        except re.error as error:
            raise InputError(
                f"scope '{scope}' ({error})",
                "all, encoder, decoder, last:N, every:N or a regular expression",
                "repair it",
            ) from error
        flags = [bool(pattern.search(name)) for name in names]
    if not any(flags):
        raise InputError(
            f"scope '{scope}' matches no norm site", f"a part of names such as {names[0]}", "see segunc doctor"
        )
    return flags
