"""Small random networks of the library transformers, one of each family that segments frames."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers as hf

CLASSES = ("road", "car", "sky", "person")
LABELS: dict[str, Any] = {
    "id2label": dict(enumerate(CLASSES)),
    "label2id": {name: number for number, name in enumerate(CLASSES)},
}
SIDE = 64
"""Height and width for which networks with a fixed size are made."""
VIT: dict[str, Any] = {
    "image_size": SIDE,
    "patch_size": 16,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_attention_heads": 2,
}
DETECTOR: dict[str, Any] = {
    "num_queries": 6,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_ffn_dim": 16,
    "decoder_ffn_dim": 16,
}
MASKS: dict[str, Any] = {
    "hidden_dim": 32,
    "num_attention_heads": 2,
    "encoder_layers": 1,
    "decoder_layers": 2,
    "encoder_feedforward_dim": 16,
    "dim_feedforward": 16,
    "num_queries": 6,
}
STAGES = ["stage1", "stage2", "stage3", "stage4"]


def swin() -> Any:
    return hf.SwinConfig(
        image_size=SIDE,
        embed_dim=8,
        depths=[1, 1, 1, 1],
        num_heads=[1, 1, 2, 2],
        window_size=4,
        out_features=STAGES,
    )


def segformer() -> Any:
    config = hf.SegformerConfig(
        depths=[1, 1, 1, 1],
        hidden_sizes=[8, 8, 16, 16],
        num_attention_heads=[1, 1, 2, 2],
        decoder_hidden_size=16,
        **LABELS,
    )
    return hf.SegformerForSemanticSegmentation(config)


def upernet() -> Any:
    backbone = hf.ConvNextConfig(
        depths=[1, 1, 1, 1], hidden_sizes=[8, 8, 16, 16], out_features=STAGES
    )
    config = hf.UperNetConfig(
        backbone_config=backbone,
        hidden_size=16,
        auxiliary_channels=8,
        auxiliary_in_channels=16,
        **LABELS,
    )
    return hf.UperNetForSemanticSegmentation(config)


def beit() -> Any:
    config = hf.BeitConfig(
        **VIT,
        num_hidden_layers=4,
        out_indices=[1, 2, 3, 4],
        use_relative_position_bias=True,
        auxiliary_channels=8,
        **LABELS,
    )
    return hf.BeitForSemanticSegmentation(config)


def data2vec() -> Any:
    config = hf.Data2VecVisionConfig(
        **VIT, num_hidden_layers=4, out_indices=[1, 2, 3, 4], auxiliary_channels=8, **LABELS
    )
    return hf.Data2VecVisionForSemanticSegmentation(config)


def dpt() -> Any:
    config = hf.DPTConfig(
        **VIT,
        num_hidden_layers=4,
        backbone_out_indices=[0, 1, 2, 3],
        neck_hidden_sizes=[8, 8, 16, 16],
        fusion_hidden_size=16,
        auxiliary_channels=8,
        **LABELS,
    )
    return hf.DPTForSemanticSegmentation(config)


def mobilevit() -> Any:
    config = hf.MobileViTConfig(
        image_size=SIDE,
        hidden_sizes=[16, 16, 16],
        neck_hidden_sizes=[8, 8, 8, 16, 16, 16, 32],
        num_attention_heads=2,
        aspp_out_channels=16,
        atrous_rates=[1, 2, 3],
        **LABELS,
    )
    return hf.MobileViTForSemanticSegmentation(config)


def mobilevit_v2() -> Any:
    config = hf.MobileViTV2Config(
        image_size=SIDE,
        width_multiplier=0.25,
        base_attn_unit_dims=[16, 16, 16],
        n_attn_blocks=[1, 1, 1],
        aspp_out_channels=16,
        **LABELS,
    )
    return hf.MobileViTV2ForSemanticSegmentation(config)


def mobilenet_v2() -> Any:
    config = hf.MobileNetV2Config(depth_multiplier=0.25, **LABELS)
    return hf.MobileNetV2ForSemanticSegmentation(config)


def sapiens2() -> Any:
    config = hf.Sapiens2Config(
        **{**VIT, "hidden_size": 32},
        num_hidden_layers=2,
        num_key_value_heads_per_layer=[2, 2],
        head_config={"upsample_out_channels": [16, 16], "conv_out_channels": [16]},
        **LABELS,
    )
    return hf.Sapiens2ForSemanticSegmentation(config)


def mask2former() -> Any:
    config = hf.Mask2FormerConfig(
        backbone_config=swin(), feature_size=32, mask_feature_size=32, **MASKS, **LABELS
    )
    return hf.Mask2FormerForUniversalSegmentation(config)


def maskformer() -> Any:
    decoder = hf.DetrConfig(
        d_model=16, encoder_attention_heads=2, decoder_attention_heads=2, **DETECTOR
    )
    config = hf.MaskFormerConfig(
        backbone_config=swin(),
        fpn_feature_size=32,
        mask_feature_size=32,
        decoder_config=decoder,
        **LABELS,
    )
    return hf.MaskFormerForInstanceSegmentation(config)


def oneformer() -> Any:
    config = hf.OneFormerConfig(
        backbone_config=swin(),
        conv_dim=32,
        mask_dim=32,
        text_encoder_width=16,
        text_encoder_num_layers=1,
        text_encoder_vocab_size=64,
        query_dec_layers=1,
        **MASKS,
        **LABELS,
    )
    return hf.OneFormerForUniversalSegmentation(config)


def eomt() -> Any:
    config = hf.EomtConfig(
        image_size=SIDE,
        patch_size=16,
        hidden_size=16,
        num_hidden_layers=3,
        num_attention_heads=2,
        num_blocks=2,
        num_queries=6,
        num_upscale_blocks=1,
        mlp_ratio=2,
        num_register_tokens=1,
        **LABELS,
    )
    return hf.EomtForUniversalSegmentation(config)


def eomt_dinov3() -> Any:
    config = hf.EomtDinov3Config(
        **VIT,
        num_hidden_layers=3,
        num_blocks=2,
        num_queries=6,
        num_upscale_blocks=1,
        num_register_tokens=1,
        **LABELS,
    )
    return hf.EomtDinov3ForUniversalSegmentation(config)


def detr() -> Any:
    backbone = hf.ResNetConfig(
        hidden_sizes=[8, 8, 16, 16],
        embedding_size=8,
        depths=[1, 1, 1, 1],
        layer_type="basic",
        out_features=STAGES,
    )
    config = hf.DetrConfig(
        use_timm_backbone=False,
        backbone=None,
        use_pretrained_backbone=False,
        backbone_config=backbone,
        d_model=128,
        encoder_attention_heads=8,
        decoder_attention_heads=8,
        **DETECTOR,
        **LABELS,
    )
    return hf.DetrForSegmentation(config)


SEMANTIC: dict[str, Callable[[], Any]] = {
    "segformer": segformer,
    "upernet": upernet,
    "beit": beit,
    "data2vec": data2vec,
    "dpt": dpt,
    "mobilevit": mobilevit,
    "mobilevit_v2": mobilevit_v2,
    "mobilenet_v2": mobilenet_v2,
    "sapiens2": sapiens2,
}
QUERIES: dict[str, Callable[[], Any]] = {
    "mask2former": mask2former,
    "maskformer": maskformer,
    "oneformer": oneformer,
    "eomt": eomt,
    "eomt_dinov3": eomt_dinov3,
    "detr": detr,
}
FAMILIES = SEMANTIC | QUERIES
WORDS = ("the</w>", "task</w>", "is</w>", "semantic</w>")


def network_of(family: str, spread: float = 0.3) -> Any:
    """Return a random network in eval mode. A spread of weights makes its logits differ between
    pixels and classes; the library's own initialisation makes them nearly equal.
    """
    torch.manual_seed(0)
    network = FAMILIES[family]().eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in network.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            inputs = parameter.numel() // len(parameter) if parameter.ndim else 1
            parameter.add_(spread * noise / max(1, inputs) ** 0.5)
    return network


def save_network_of(family: str, folder: Path, **processor: Any) -> Any:
    """Write a random network as ``save_pretrained`` does, with its image processor, and return
    it.
    """
    network = network_of(family)
    network.save_pretrained(folder)
    settings = {"do_resize": False, "image_mean": [0.4, 0.5, 0.6], "image_std": [0.2, 0.25, 0.3]}
    hf.SegformerImageProcessor(**{**settings, **processor}).save_pretrained(folder)
    if family == "oneformer":
        save_words(folder)
    return network


def save_words(folder: Path) -> None:
    """Write the files of a tokenizer that knows the words of OneFormer's task and their letters."""
    letters = sorted(set("".join(WORDS).replace("</w>", "")))
    tokens = [*letters, *(f"{letter}</w>" for letter in letters)]
    merges: list[str] = []
    for word in WORDS:
        parts = [*word.removesuffix("</w>")]
        parts[-1] += "</w>"
        while len(parts) > 1:
            merges.append(f"{parts[0]} {parts[1]}")
            parts[:2] = [parts[0] + parts[1]]
            tokens.append(parts[0])
    unique = [*dict.fromkeys(tokens), "<|startoftext|>", "<|endoftext|>"]
    vocabulary = {token: number for number, token in enumerate(unique)}
    tokenizer = hf.CLIPTokenizer(
        vocab=vocabulary, merges=[tuple(merge.split()) for merge in merges]
    )
    tokenizer.save_pretrained(folder)
