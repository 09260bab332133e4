"""Light and weather of one scene, and what the air and the sensor make of the drawn colours."""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np
import numpy.typing as npt

from segunc.toyroads.camera import Camera, Floats, Points
from segunc.toyroads.paint import TILE, noise_tile

# How often; strength of the direct and of the sky's light; extinction of the air (1/m).
_WEATHERS = {
    "clear": (0.42, 0.95, 0.6, 0.0022),
    "overcast": (0.28, 0.06, 0.85, 0.004),
    "haze": (0.1, 0.3, 0.72, 0.018),
    "rain": (0.1, 0.03, 0.68, 0.009),
    "dusk": (0.1, 0.4, 0.42, 0.005),
}


@dataclass(frozen=True)
class Light:
    """What lights a scene and what lies between it and the sensor."""

    weather: str
    sun: Points  # unit vector towards the sun (right, up, ahead)
    sun_colour: Points  # RGB factors of direct light
    ambient: Points  # and of sky light
    zenith: Points  # RGB of the sky above
    skyline: Points  # and at the horizon; the haze's colour too
    clouds: float  # cover of the sky, 0..1
    extinction: float  # of the air, 1/m
    exposure: float  # of the sensor, a factor
    balance: Points  # a factor for each of RGB
    noise: float  # standard deviation of the sensor noise at middle grey (0..1)
    blur: float  # of the lens, in final pixels
    rain: float  # streaks in the picture, 0..1
    wet: float  # how much the ground mirrors, 0..1
    offsets: tuple[int, int]  # where the noise tiles of the sky begin

    def shade(self, normal: tuple[float, float, float] | Points) -> Points:
        """RGB factors of a surface with this unit normal (right, up, ahead)."""
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


def sample_light(rng: np.random.Generator, weather: str | None = None) -> Light:
    """A random time of day and weather; ``weather`` fixes the latter."""
    drawn = str(rng.choice([*_WEATHERS], p=[row[0] for row in _WEATHERS.values()]))
    weather = weather or drawn
    _, strength, level, extinction = _WEATHERS[weather]
    dusk, rain = weather == "dusk", weather == "rain"
    azimuth = rng.uniform(-np.pi, np.pi)
    elevation = np.deg2rad(rng.uniform(8, 18) if dusk else rng.uniform(22, 62))
    strength, level = strength * rng.uniform(0.75, 1.2), level * rng.uniform(0.88, 1.12)
    grey = rng.uniform(0.62, 0.9)
    # All are drawn and one is taken: zenith, skyline, clouds.
    blue, pale = np.array([0.28, 0.47, 0.78]), np.array([0.72, 0.82, 0.93])
    late, glow = np.array([0.2, 0.26, 0.45]), np.array([0.85, 0.6, 0.45])
    zenith, skyline, clouds = {
        "clear": (blue * rng.uniform(0.8, 1.15), pale, rng.uniform(0, 0.6)),
        "overcast": (grey * np.array([0.95, 0.98, 1.02]), np.full(3, min(0.95, grey + 0.08)), rng.uniform(0.3, 1)),
        "haze": (grey * np.array([0.97, 1.0, 1.03]), np.full(3, min(0.92, grey + 0.05)), rng.uniform(0, 0.3)),
        "rain": (np.full(3, 0.85 * grey), np.full(3, 0.9 * grey), rng.uniform(0.4, 1)),
        "dusk": (late * rng.uniform(0.7, 1.3), glow * rng.uniform(0.7, 1.05), rng.uniform(0, 0.7)),
    }[weather]
    return Light(
        weather=weather,
        sun=np.array([np.cos(elevation) * np.sin(azimuth), np.sin(elevation), np.cos(elevation) * np.cos(azimuth)]),
        sun_colour=strength * np.array([1.0, 0.62, 0.38] if dusk else [1.0, 0.96, 0.88]),
        ambient=level * np.array([0.94, 0.99, 1.08] if dusk or weather == "clear" else [1.0, 1.0, 1.0]),
        zenith=zenith,
        skyline=skyline,
        clouds=clouds,
        extinction=extinction * rng.uniform(0.5, 1.3),
        exposure=rng.uniform(0.9, 1.3),
        balance=1 + rng.uniform(-0.05, 0.05, 3),
        noise=rng.uniform(0.005, 0.014) * (1.4 if dusk else 1.0),
        blur=rng.uniform(0.25, 0.55),
        rain=rng.uniform(0.3, 1.0) if rain else 0.0,
        wet=rng.uniform(0.15, 0.4) if rain else 0.0,
        offsets=(int(rng.integers(TILE)), int(rng.integers(TILE))),
    )


def draw_sky(camera: Camera, light: Light) -> Floats:
    """The sky behind everything, float32 ``[rows, columns, 3]``: a gradient with clouds that flatten to the horizon."""
    rows, columns = camera.rows, camera.columns
    above = np.clip(1 - (np.arange(rows, dtype=np.float32) + 0.5) / (camera.horizon * rows), 0, 1)
    share = np.sqrt(above)[:, None, None]
    sky = light.skyline.astype(np.float32) * (1 - share) + light.zenith.astype(np.float32) * share
    sky = np.repeat(sky, columns, axis=1)
    # Clouds are soft: half the resolution is enough, and only above the horizon.
    last = min(rows, int(camera.horizon * rows) + 1)
    height = np.maximum(above[:last:2], 0.04)[:, None]
    across = ((np.arange(0, columns, 2, dtype=np.float32) + 1) / columns - 0.5)[None] / height
    map_x = (24 * across + light.offsets[0]).astype(np.float32)
    map_y = np.broadcast_to(40 / height + light.offsets[1], map_x.shape).astype(np.float32)
    cover = cv2.remap(noise_tile("cloud"), map_x, map_y, cv2.INTER_LINEAR, borderMode=cv2.BORDER_WRAP)
    cover = np.clip(0.55 * cover + 1.6 * light.clouds - 0.7, 0, 1) * np.minimum(1, 4 * height)
    cover = cv2.resize(cover.astype(np.float32), (columns, last))[..., None]
    white = (0.75 * light.skyline + 0.2).astype(np.float32)
    sky[:last] += np.float32(0.7) * cover * (white * (np.float32(0.9) + np.float32(0.1) * cover) - sky[:last])
    return sky


def apply_air(colours: Floats, depth: Floats, light: Light) -> Floats:
    """Haze: Koschmieder's law ``c exp(-k d) + skyline (1 - exp(-k d))``; depth 0 (the sky) stays as it is."""
    skyline = light.skyline.astype(np.float32)
    clear = np.asarray(cv2.exp(-np.float32(light.extinction) * depth), np.float32)
    return skyline + (colours - skyline) * clear[..., None]


def add_rain(picture: Floats, light: Light, rng: np.random.Generator) -> Floats:
    """Light streaks of rain over the final-size picture ``[H, W, 3]``."""
    if light.rain == 0:
        return picture
    rows, columns = picture.shape[:2]
    streaks, slant = np.zeros((rows, columns), np.float32), rng.uniform(-0.2, 0.2)
    for x, y, length, bright in rng.uniform((0, 0, 0.03, 0.05), (1, 1, 0.10, 0.22), (int(120 * light.rain), 4)):
        start = (int(x * columns), int(y * rows))
        end = (int((x + slant * length) * columns), int((y + length) * rows))
        cv2.line(streaks, start, end, float(bright), max(1, rows // 256), cv2.LINE_AA)
    return picture + streaks[..., None] * (np.float32(0.85) - picture)


def expose(picture: Floats, light: Light, rng: np.random.Generator) -> npt.NDArray[np.uint8]:
    """The sensor: exposure, white balance, vignette, a soft shoulder, signal-dependent noise; uint8 ``[H, W, 3]``."""
    rows, columns = picture.shape[:2]
    y, x = np.linspace(-1, 1, rows, dtype=np.float32)[:, None], np.linspace(-1, 1, columns, dtype=np.float32)[None]
    gain = np.float32(light.exposure) * (1 - np.float32(0.08) * (x**2 + y**2))
    picture = picture * (gain[..., None] * light.balance.astype(np.float32))
    # Highlights roll off instead of clipping: identity below 0.7, then towards 1.
    over = np.maximum(picture - np.float32(0.7), 0)
    picture = np.minimum(picture, np.float32(0.7)) + np.float32(0.3) * over / (over + np.float32(0.3))
    grain = rng.standard_normal(picture.shape, dtype=np.float32)
    # Half of the noise is shared by the three channels, as after demosaicing.
    grain = np.float32(0.7) * grain + np.float32(0.7) * rng.standard_normal((rows, columns, 1), dtype=np.float32)
    picture = picture + np.float32(light.noise) * np.sqrt(0.3 + 1.4 * np.maximum(picture, 0)) * grain
    return np.rint(np.clip(picture, 0, 1) * 255).astype(np.uint8)
