"""The posteriors over one network that model folders hold, by the names in their records."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from segunc.affine.posterior import Posterior
from segunc.core.errors import InputError
from segunc.posteriors.abnn import ABNN
from segunc.posteriors.chains import HMC, SGHMC, SGLD
from segunc.posteriors.laplace import Laplace
from segunc.posteriors.mc_dropout import ChannelDropout, OwnDropout
from segunc.posteriors.swag import Swag
from segunc.posteriors.variational import MeanField

STORED: tuple[type[Posterior], ...] = (ABNN, MeanField, Swag, Laplace, ChannelDropout, SGLD, SGHMC, HMC)
METHODS = {posterior.method: posterior for posterior in STORED}
"""By method; the deterministic one is a folder without any, and mixtures have folders of their own kind."""
DROPOUT: dict[str, type[Posterior]] = {ChannelDropout.where: ChannelDropout, OwnDropout.where: OwnDropout}
"""The two kinds of ``mc-dropout``, by what their records say is dropped."""


def restore(record: Mapping[str, Any], tensors: Mapping[str, Tensor], source: Path) -> Posterior:
    """The posterior of a record and its tensors.

    Args:
        record: the content of ``posterior.json``.
        tensors: that lie beside it.
        source: the file of the record, for messages.

    Raises:
        InputError: an unknown method or kind, or a record that lacks something.
    """
    method = record.get("method")
    if method not in METHODS:
        known = ", ".join(METHODS)
        raise InputError(f"posterior method '{method}' in {source.parent}", known, "a newer version may know it")
    kind = METHODS[method]
    if kind is ChannelDropout:
        where = record.get("where")
        if where not in DROPOUT:
            raise InputError(f"dropout at '{where}' in {source}", ", ".join(DROPOUT), "a newer version may know it")
        kind = DROPOUT[where]
    try:
        return kind.from_tensors(tensors, record)
    except KeyError as error:
        raise InputError(f"{source} lacks {error}", "the record of a posterior", "make it again") from error
