"""Persons: standing, walking or in a group, as jointed flat figures that face the camera."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from segunc.data.toy import palette, textures
from segunc.data.toy.camera import Floats, Points
from segunc.data.toy.canvas import PERSON, Stage, limb, upright

_FACING = (0.0, 0.25, -0.97)


@dataclass(frozen=True)
class Person:
    """One person; ``stride`` is the swing of the legs in radians, ``turn`` the width seen (0.6 side .. 1 front)."""

    lateral: float
    station: float
    height: float
    stride: float
    turn: float
    build: float
    top: Points
    trousers: Points
    skin: Points
    hair: Points
    patch: Floats
    skirt: bool
    bag: int

    def footprint(self) -> Points:
        """Street points of feet and head, for shadows."""
        half = 0.2
        return np.array(
            [
                *((self.lateral + x, 0.0, self.station + z) for x in (-half, half) for z in (-0.1, 0.15)),
                *((self.lateral + x, self.height, self.station) for x in (-0.15, 0.15)),
            ]
        )

    def draw(self, stage: Stage) -> None:
        """Legs first, then the far arm, the trunk, the near arm and the head."""
        h, light = self.height, stage.light
        shade = light.shade(_FACING) * 1.05
        patch = textures.rounded(self.patch, light.side)
        wide = 0.125 * h * self.build * self.turn
        hip, shoulder = 0.5 * h, 0.82 * h

        def part(corners: list[tuple[float, float]], colour: Points) -> None:
            stage.flat(upright(corners, self.lateral, self.station), colour * shade, PERSON, patch)

        # Hands, shoes and bags of far persons are less than a pixel.
        near = stage.camera.pixels_per_metre(self.station) > 14
        swing = 0.47 * h * np.sin(self.stride)
        for sign in (-1, 1):
            start = (sign * 0.045 * h * self.turn, hip)
            knee = (start[0] + 0.55 * sign * swing, 0.27 * h)
            foot = (start[0] + sign * swing, 0.03 * h)
            part(limb(start, knee, 0.1 * h * self.build, 0.075 * h), self.trousers)
            part(limb(knee, foot, 0.078 * h, 0.055 * h), self.trousers)
            if near:
                part(
                    limb((foot[0] - 0.03, 0.02 * h), (foot[0] + 0.06, 0.02 * h), 0.045 * h, 0.04 * h),
                    self.trousers * 0.4,
                )
        if self.skirt:
            part(
                [(-wide, hip + 0.08), (wide, hip + 0.08), (1.5 * wide, 0.26 * h), (-1.5 * wide, 0.26 * h)],
                self.top * 0.8,
            )
        part(
            [(-0.85 * wide, hip - 0.02 * h), (0.85 * wide, hip - 0.02 * h), (wide, shoulder - 0.04 * h),
             (0.55 * wide, shoulder + 0.01 * h), (-0.55 * wide, shoulder + 0.01 * h), (-wide, shoulder - 0.04 * h)],
            self.top,
        )  # fmt: skip
        for sign in (-1, 1):
            joint = (sign * 0.95 * wide, shoulder - 0.03 * h)
            hand = (joint[0] - 0.6 * sign * swing + 0.02 * sign, 0.46 * h)
            part(limb(joint, hand, 0.065 * h, 0.045 * h), self.top * 0.88)
            if not near:
                continue
            stage.disc((self.lateral + hand[0], hand[1] - 0.01, self.station), (0.05, 0.06), self.skin * shade, PERSON)
            if self.bag == sign:
                low = hand[1] - 0.02
                part(
                    [
                        (hand[0] - 0.13, low),
                        (hand[0] + 0.13, low),
                        (hand[0] + 0.15, low - 0.3),
                        (hand[0] - 0.15, low - 0.3),
                    ],
                    self.hair,
                )
        stage.disc((self.lateral, 0.86 * h, self.station), (0.045, 0.07), self.skin * shade * 0.9, PERSON)
        head = (self.lateral, 0.925 * h, self.station)
        stage.disc(head, (0.052 * h * 0.95, 0.072 * h), self.hair * shade, PERSON)
        if self.turn > 0.7 or self.bag != 0:
            face = (self.lateral + 0.01, 0.905 * h, self.station)
            stage.disc(face, (0.04 * h, 0.052 * h), self.skin * shade, PERSON)


def sample_person(rng: np.random.Generator, lateral: float, station: float) -> Person:
    """A random person at a place."""
    return Person(
        lateral=lateral,
        station=station,
        height=float(rng.uniform(1.5, 1.92)) if rng.random() < 0.88 else float(rng.uniform(1.05, 1.4)),
        stride=float(rng.uniform(0.05, 0.5)) if rng.random() < 0.75 else 0.03,
        turn=float(rng.uniform(0.6, 1.0)),
        build=float(rng.uniform(0.9, 1.3)),
        top=palette.clothing(rng),
        trousers=palette.clothing(rng) * 0.85,
        skin=palette.skin(rng),
        hair=palette.bark(rng) * rng.uniform(0.4, 1.4),
        patch=textures.fabric(rng),
        skirt=bool(rng.random() < 0.2),
        bag=int(rng.choice([-1, 0, 0, 1])),
    )
