"""Curves on logarithmic axes, and bars, as SVG: they need no library, and are text, so that a change can be read."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

WIDTH, HEIGHT = 720, 420
LEFT, RIGHT, TOP, BOTTOM = 60, 130, 50, 50
NAMES, ROW = 120, 30
"""Where bars begin, and how far apart they are."""
OURS = "reltask"
COLOURS = ["#b3452c", "#c08a1e", "#5a7d2a", "#2b5d8a"]

Point = tuple[float, float]


class Series(NamedTuple):
    """One curve."""

    name: str
    points: list[Point]


def plot(curves: Sequence[Series], *, title: str, x: str) -> str:
    """The curves with their names at their ends, and their numbers at their points."""
    everything = [point for curve in curves for point in curve.points]
    scale = _Scale(everything)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}"',
        '     font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="24" font-size="16">{title}</text>',
        *_axes(scale, sorted({point[0] for point in everything}), x),
    ]
    names = _apart([scale.y(curve.points[-1][1]) for curve in curves])
    for curve, colour, name_y in zip(curves, COLOURS, names, strict=False):
        parts += _curve(curve, colour, scale, name_y)
    return "\n".join([*parts, "</svg>"]) + "\n"


class Bar(NamedTuple):
    """One bar, with the span of its rounds."""

    name: str
    median: float
    least: float
    most: float


def bars(found: Sequence[Bar], *, title: str) -> str:
    """The bars from the top down, on a linear axis from zero, each with its number and its span."""
    height = TOP + len(found) * ROW + 20
    unit = (WIDTH - NAMES - RIGHT) / max(bar.most for bar in found)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}"',
        '     font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        f'<text x="20" y="24" font-size="16">{title}</text>',
    ]
    for index, bar in enumerate(found):
        parts += _bar(bar, TOP + index * ROW, unit)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _bar(bar: Bar, top: float, unit: float) -> list[str]:
    colour, middle = COLOURS[3] if bar.name == OURS else "#9a9a9a", top + ROW / 2 - 4
    least, most = NAMES + bar.least * unit, NAMES + bar.most * unit
    value = f"{bar.median:,.0f}".replace(",", " ") if bar.median >= 100 else f"{bar.median:.3g}"  # noqa: PLR2004
    return [
        f'<text x="{NAMES - 8}" y="{middle + 4:.1f}" text-anchor="end">{bar.name}</text>',
        f'<rect x="{NAMES}" y="{top:.1f}" width="{bar.median * unit:.1f}" height="{ROW - 8}" fill="{colour}"/>',
        f'<line x1="{least:.1f}" y1="{middle:.1f}" x2="{most:.1f}" y2="{middle:.1f}" stroke="#333333"/>',
        f'<text x="{most + 8:.1f}" y="{middle + 4:.1f}">{value}</text>',
    ]


class _Scale:
    """From values to places on the page."""

    def __init__(self, points: list[Point]) -> None:
        self._least_x = math.log10(min(x for x, _ in points))
        self._most_x = math.log10(max(x for x, _ in points))
        self.lowest = math.floor(math.log10(min(y for _, y in points)))
        self.highest = max(math.ceil(math.log10(max(y for _, y in points))), self.lowest + 1)

    def x(self, value: float) -> float:
        share = (math.log10(value) - self._least_x) / (self._most_x - self._least_x)
        return LEFT + share * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        share = (math.log10(value) - self.lowest) / (self.highest - self.lowest)
        return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)


def _axes(scale: _Scale, ticks: list[float], label: str) -> list[str]:
    parts = []
    for power in range(scale.lowest, scale.highest + 1):
        y = scale.y(10.0**power)
        parts.append(f'<line x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}" stroke="#dddddd"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{10.0**power:g}</text>')
    below = HEIGHT - BOTTOM + 18
    parts += [f'<text x="{scale.x(tick):.1f}" y="{below}" text-anchor="middle">{tick:g}</text>' for tick in ticks]
    middle = (LEFT + WIDTH - RIGHT) / 2
    return [*parts, f'<text x="{middle:.1f}" y="{HEIGHT - 10}" text-anchor="middle">{label}</text>']


def _curve(curve: Series, colour: str, scale: _Scale, name_y: float) -> list[str]:
    places = [(scale.x(x), scale.y(y)) for x, y in curve.points]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    dots = [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in places]
    text = f"{curve.name} {curve.points[-1][1]:g}"
    name = f'<text x="{WIDTH - RIGHT + 10}" y="{name_y + 4:.1f}" fill="{colour}">{text}</text>'
    return [f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>', *dots, name]


def _apart(places: list[float], least: float = 15.0) -> list[float]:
    """The same places, moved so that names do not cover one another."""
    moved = dict.fromkeys(range(len(places)), 0.0)
    last = -math.inf
    for index in sorted(range(len(places)), key=lambda index: places[index]):
        last = moved[index] = max(places[index], last + least)
    return [moved[index] for index in range(len(places))]
