"""Names of the weights of EfficientNets: those of the package ``efficientnet_pytorch``, which other
packages kept, and those of timm.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

STEM = "_conv_stem.weight"  # which only files in the older names have
_OUTSIDE = {
    "_conv_stem": "conv_stem",
    "_bn0": "bn1",
    "_conv_head": "conv_head",
    "_bn1": "bn2",
    "_fc": "classifier",
}
_SQUEEZE = {"_se_reduce": "se.conv_reduce", "_se_expand": "se.conv_expand"}
_WITH_EXPANSION = {
    "_expand_conv": "conv_pw",
    "_bn0": "bn1",
    "_depthwise_conv": "conv_dw",
    "_bn1": "bn2",
    "_project_conv": "conv_pwl",
    "_bn2": "bn3",
    **_SQUEEZE,
}
_WITHOUT_EXPANSION = {
    "_depthwise_conv": "conv_dw",
    "_bn1": "bn1",
    "_project_conv": "conv_pw",
    "_bn2": "bn2",
    **_SQUEEZE,
}
"""Parts of a block by the older name; a block without expansion has one convolution less."""


def in_names_of_timm(state: Mapping[str, Tensor], encoder: nn.Module) -> dict[str, Tensor]:
    """Return a state dict with the names that an EfficientNet of timm has.

    The older names count the blocks through; timm counts them within each of its stages. Names that
    are not of this form are returned as they are.

    Args:
        state: tensors by their names in a file.
        encoder: the network that will get them: timm's, or smp's wrapper ``tu-`` of it.
    """
    network = getattr(encoder, "model", encoder)
    stages = getattr(network, "blocks", None)
    if STEM not in state or not hasattr(network, "conv_stem") or not isinstance(stages, nn.Module):
        return dict(state)
    blocks = []
    for stage, modules in stages.named_children():
        blocks += [f"blocks.{stage}.{number}" for number, _ in modules.named_children()]
    return {_renamed(name, blocks, state): tensor for name, tensor in state.items()}


def _renamed(name: str, blocks: list[str], state: Mapping[str, Tensor]) -> str:
    """Return timm's name of a tensor, from the names of timm's blocks in their order."""
    parts = name.split(".")
    if parts[0] in _OUTSIDE:
        return ".".join([_OUTSIDE[parts[0]], *parts[1:]])
    if parts[0] != "_blocks" or not parts[1].isdigit() or int(parts[1]) >= len(blocks):
        return name
    expands = f"_blocks.{parts[1]}._expand_conv.weight" in state
    inside = _WITH_EXPANSION if expands else _WITHOUT_EXPANSION
    if parts[2] not in inside:
        return name
    return ".".join([blocks[int(parts[1])], inside[parts[2]], *parts[3:]])
