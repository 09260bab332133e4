"""Light and weather of one scene, and what the air and the sensor make of the drawn colours."""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np
import numpy.typing as npt

from segunc.toyroads.camera import Camera, Floats, Points
from segunc.toyroads.paint import crop


@dataclass(frozen=True)
class Light:
    """What lights a scene and what lies between it and the sensor."""

    weather: str
    sun: Points  # unit vector towards the sun (right, up, ahead)
    sun_colour: Points  # RGB factors of direct light
    ambient: Points  # and of sky light
    zenith: Points  # RGB of the sky above
    skyline: Points  # and at the horizon; the haze's colour too
    clouds: Floats  # cover of the sky, 0..1, stretched over it
    extinction: float  # of the air, 1/m
    exposure: float  # of the sensor, a factor
    noise: float  # standard deviation of the sensor noise at middle grey (0..1)
    wet: float  # how much rain has darkened the ground, 0..1

    def shade(self, normal: tuple[float, float, float] | Points) -> Points:
        """Return RGB factors of a surface with this unit normal (right, up, ahead)."""
        direct = max(0.0, float(np.dot(np.asarray(normal), self.sun)))
        # Surfaces that face the ground see less sky.
        return self.ambient * (0.8 + 0.2 * float(normal[1])) + self.sun_colour * direct

    @property
    def shadow(self) -> float:
        """The factor by which a cast shadow darkens the ground, 0..1."""
        return float(self.ambient.mean() / max(self.shade((0.0, 1.0, 0.0)).mean(), 1e-6))

    @property
    def side(self) -> float:
        """From which side round bodies are lit, -1 left .. 1 right, weak without direct sun."""
        strength = self.sun_colour.mean() / (self.sun_colour.mean() + self.ambient.mean())
        return float(self.sun[0] * min(1.0, 1.8 * strength))


def sample_light(rng: np.random.Generator) -> Light:
    """Return a random time of day and weather."""
    weather = str(rng.choice(["clear", "overcast", "dusk"], p=[0.5, 0.38, 0.12]))
    overcast, dusk = weather == "overcast", weather == "dusk"
    azimuth = rng.uniform(-np.pi, np.pi)
    elevation = np.deg2rad(rng.uniform(8, 18) if dusk else rng.uniform(22, 62))
    tint = np.array([1.0, 1.0, 1.0] if overcast else [0.94, 0.99, 1.08])
    # Of the direct light, the sky's light, the zenith and the skyline.
    strength, level, zenith, skyline = {
        "clear": (0.95, 0.6, [0.28, 0.47, 0.78], [0.72, 0.82, 0.93]),
        "overcast": (0.06, 0.8, [0.72, 0.75, 0.78], [0.84, 0.84, 0.84]),
        "dusk": (0.4, 0.42, [0.2, 0.26, 0.45], [0.78, 0.55, 0.41]),
    }[weather]
    bright = rng.uniform(0.8, 1.15)
    return Light(
        weather=weather,
        sun=np.array([np.cos(elevation) * np.sin(azimuth), np.sin(elevation), np.cos(elevation) * np.cos(azimuth)]),
        sun_colour=strength * rng.uniform(0.75, 1.2) * np.array([1.0, 0.62, 0.38] if dusk else [1.0, 0.96, 0.88]),
        ambient=level * rng.uniform(0.88, 1.12) * tint,
        zenith=bright * np.array(zenith),
        skyline=min(1.0, bright) * np.array(skyline),
        clouds=np.clip(0.55 * crop(rng, "cloud", 24, 48) + rng.uniform(-0.7, 0.7), 0, 1),
        extinction=rng.uniform(0.003, 0.012) if overcast else rng.uniform(0.001, 0.005),
        exposure=rng.uniform(0.9, 1.3),
        noise=rng.uniform(0.005, 0.016),
        wet=rng.uniform(0, 0.6) if overcast else 0.0,
    )


def draw_sky(camera: Camera, light: Light) -> Floats:
    """Return the sky behind everything, float32 ``[rows, columns, 3]``: a gradient with clouds that fade to the horizon."""
    rows = camera.rows
    above = np.clip(1 - (np.arange(rows, dtype=np.float32) + 0.5) / (camera.horizon * rows), 0, 1)[:, None, None]
    sky = light.skyline + (light.zenith - light.skyline) * np.sqrt(above)
    cover = cv2.resize(light.clouds, (camera.columns, rows))[..., None]
    white = 0.75 * light.skyline + 0.2
    return np.asarray(sky + 0.7 * cover * np.minimum(1, 4 * above) * (white - sky), np.float32)


def apply_air(colours: Floats, depth: Floats, light: Light) -> Floats:
    """Add haze by Koschmieder's law ``c exp(-k d) + skyline (1 - exp(-k d))``; depth 0 (the sky) stays as it is."""
    skyline = light.skyline.astype(np.float32)
    clear = np.asarray(cv2.exp(-np.float32(light.extinction) * depth), np.float32)
    return skyline + (colours - skyline) * clear[..., None]


def expose(picture: Floats, light: Light, rng: np.random.Generator) -> npt.NDArray[np.uint8]:
    """Return what the sensor makes of a picture (exposure, a soft shoulder, signal-dependent noise), uint8 ``[H, W, 3]``."""
    picture = picture * np.float32(light.exposure)
    # Highlights roll off instead of clipping: identity below 0.7, then towards 1.
    over = np.maximum(picture - np.float32(0.7), 0)
    picture = np.minimum(picture, np.float32(0.7)) + np.float32(0.3) * over / (over + np.float32(0.3))
    grain = rng.standard_normal(picture.shape, dtype=np.float32)
    picture = picture + np.float32(light.noise) * np.sqrt(0.3 + 1.4 * np.maximum(picture, 0)) * grain
    return np.rint(np.clip(picture, 0, 1) * 255).astype(np.uint8)
