"""The options of every verb that samples; nothing here imports more than argparse."""

from __future__ import annotations

import argparse

SMALLEST_SIDE = 32
"""Stride of the deepest feature map of the usual encoders: a smaller input leaves it nothing."""


def image_size(text: str) -> tuple[int, int]:
    """``HxW`` as (height, width)."""
    parts = text.lower().split("x")
    if len(parts) != 2 or not all(p.isdigit() and int(p) > 0 for p in parts):
        raise argparse.ArgumentTypeError(f"'{text}' is not HxW, e.g. 512x1024")
    height, width = int(parts[0]), int(parts[1])
    if min(height, width) < SMALLEST_SIDE:
        raise argparse.ArgumentTypeError(f"'{text}' is too small, each side must be at least {SMALLEST_SIDE}")
    return height, width


def add_sampling_options(parser: argparse.ArgumentParser) -> None:
    """Draws, their noise and the network's size and precision."""
    parser.add_argument("--draws", type=int, default=24, metavar="S", help="draws in total (default 24)")
    parser.add_argument("--seed", type=int, default=0, help="of the draws (default 0)")
    parser.add_argument(
        "--scheme",
        choices=("independent", "antithetic", "latin-hypercube"),
        help="how the draws of a member are spread (default latin-hypercube)",
    )
    parser.add_argument(
        "--scope", metavar="SCOPE", help="sample fewer norm sites: all, encoder, decoder, last:N, every:N or a pattern"
    )
    parser.add_argument(
        "--size", type=image_size, metavar="HxW", help="size the network sees; maps keep the frame's own size"
    )
    parser.add_argument("--chunk", type=int, metavar="N", help="draws in a batch (default: by memory)")
    parser.add_argument(
        "--precision",
        choices=("auto", "float32", "bfloat16"),
        default="auto",
        help="of the network (default: bfloat16 where it is fast)",
    )
    parser.add_argument("--threads", type=int, metavar="N", help="CPU threads of the network (default: all cores)")
    parser.add_argument(
        "--compile",
        nargs="?",
        const="on",
        default="auto",
        choices=("auto", "on", "off"),
        help="torch.compile the draws: a tenth faster after seconds of compiling for each size of frame (default auto: where the whole input is long enough)",
    )
