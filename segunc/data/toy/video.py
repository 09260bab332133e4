"""The toy video: the camera drives along a street while an animal crosses in front of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from segunc.data.toy.anomalies import sample_anomaly
from segunc.data.toy.layout import Thing, sample_layout
from segunc.data.toy.people import Person
from segunc.data.toy.scene import Scene, render_layout
from segunc.data.toy.vehicles import Car

SPEED = 4.5
"""Of the camera, m/s."""
CROSSING = 24.0
"""Station of the crossing animal, metres ahead of the first frame's camera."""


def video_frames(
    seed: tuple[int, int], size: tuple[int, int], frames: int, frames_per_second: float
) -> Iterator[Scene]:
    """Draw the frames of the video one after the other.

    Args:
        seed: (seed of the data set, place of the video after the splits).
        size: (height, width) in pixels.
        frames: how many; the crossing takes this long.
        frames_per_second: with SPEED, how far the camera moves between frames.
    """
    rng = np.random.default_rng((*seed, 0))
    layout = sample_layout(rng, straight=True, weather="clear")
    animal = sample_anomaly(rng, 0.0, CROSSING, "animal")
    animal = replace(animal, mirror=1, size=max(animal.size, 1.15))
    # It starts at the left kerb and ends near the right one.
    start, end = layout.ground.road[0] + 0.3, layout.ground.road[1] - 0.8
    # The camera stops short of it, as a driver would.
    speed = min(SPEED, (CROSSING - 6.5) * frames_per_second / max(1, frames))
    duration = frames / frames_per_second
    things = [moved for thing in layout.things if (moved := _give_way(thing, duration)) is not None]
    for i in range(frames):
        time = i / frames_per_second
        share = i / max(1, frames - 1)
        odd = animal.moved(start + (end - start) * share, animal.phase + 7.0 * time)
        now = replace(layout, things=[*(_advance(thing, time) for thing in things), odd])
        yield render_layout(now, size, np.random.default_rng((*seed, i + 1)), speed * time)


def _give_way(thing: Thing, duration: float) -> Thing | None:
    """Traffic that lets the animal pass: cars before it are gone unless parked at the kerb, cars behind it keep their distance."""
    if isinstance(thing, Person) and abs(thing.lateral) < 2.0 and thing.station < CROSSING + 2:
        return None
    if not isinstance(thing, Car):
        return thing
    if thing.speed == 0:
        # A parked car stays at its kerb; one that stands in the camera's way, or turns across it, is left out.
        reach = 5.0 if abs(np.sin(thing.yaw)) > 0.3 else 2.3
        return None if abs(thing.lateral) < reach and thing.station < CROSSING + 6 else thing
    if thing.station < CROSSING + 6:
        return None
    if thing.speed < 0:
        return replace(thing, speed=max(thing.speed, -(thing.station - CROSSING - 5) / duration))
    return thing


def _advance(thing: Thing, time: float) -> Thing:
    if isinstance(thing, Car):
        return replace(thing, station=thing.station + thing.speed * time)
    if isinstance(thing, Person) and thing.stride > 0.04:
        return replace(thing, stride=thing.stride * float(np.cos(6.0 * time)))
    return thing
