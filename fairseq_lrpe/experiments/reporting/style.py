"""Colors and markers of methods; a method has the same ones in all plots."""

from collections import Counter
from collections.abc import Iterable
from itertools import product
from zlib import crc32

from fairseq_lrpe.methods import METHODS, canonical

BLACK = "#000000"
GREY = "#7f7f7f"
BROWN = "#8c510a"
RED = "#b2182b"
VERMILLION = "#d55e00"
ORANGE = "#e69f00"
OLIVE = "#808000"
LIME = "#7fbc41"
GREEN = "#009e73"
TEAL = "#1fbfb8"
SKY = "#56b4e9"
BLUE = "#0072b2"
NAVY = "#1f2a7a"
PURPLE = "#6a3d9a"
MAGENTA = "#d01c8b"
PINK = "#cc79a7"
COLORS = (BLACK, GREY, BROWN, RED, VERMILLION, ORANGE, OLIVE, LIME)
COLORS += (GREEN, TEAL, SKY, BLUE, NAVY, PURPLE, MAGENTA, PINK)
MARKERS = "os^vDPX*phd<>8H"

METHOD_STYLES = {  # methods in the same table of a paper have different colors
    "base": (BLACK, "o"),
    "nope": (GREY, "s"),
    "rope": (BLUE, "s"),
    "spe": (GREEN, "^"),
    "per": (PINK, "v"),
    "t5": (BROWN, "D"),
    "xl": (NAVY, "h"),
    "shaw": (VERMILLION, "D"),
    "shaw_values": (ORANGE, "D"),
    "lfhc": (GREEN, "p"),
    "gcdf": (PINK, "h"),
    "deberta": (RED, "8"),
    "roper": (VERMILLION, "^"),
    "cosformer": (OLIVE, "X"),
    "alibi": (BROWN, "*"),
    "xpos": (OLIVE, "v"),
    "lrpe_decay": (PURPLE, "D"),
    "gla": (GREEN, "o"),
    "tmlr_type1": (ORANGE, "P"),
    "tmlr_type2": (SKY, "*"),
    "tmlr_type3": (RED, "X"),
    "iclr_type1": (PURPLE, "p"),
    "iclr_type3": (LIME, "<"),
    "iclr_type5": (OLIVE, ">"),
    "iclr_type6": (MAGENTA, "8"),
    "iclr_type7": (TEAL, "d"),
    "iclr_type8": (VERMILLION, "H"),
    "ablation_identity_unitary": (BLUE, "d"),
    "ablation_identity_orthogonal": (GREEN, "<"),
    "ablation_identity_permutation": (BROWN, ">"),
    "ablation_permutation_unitary": (PINK, "8"),
    "fairseq": (GREY, "X"),
}
UNUSED_STYLES = sorted(set(product(COLORS, MARKERS)) - set(METHOD_STYLES.values()))
OTHER_STYLES = {  # derived from the names; each method removes its style, so that no two have the same
    name: UNUSED_STYLES.pop(crc32(name.encode()) % len(UNUSED_STYLES))
    for name in dict.fromkeys(map(canonical, METHODS))
    if name not in METHOD_STYLES
}

SHADES = (0, 0.5, -0.6, -0.3, 0.25)
"""Changes of lightness, from -1 to 1, that give the rows of a method different shades of its color."""

LINE_STYLES = {"linear": "-", "softmax": (0, (5, 2))}
"""{attention: matplotlib's line style}"""


def method_style(method: str | None) -> tuple[str, str]:
    """Returns the color and marker of a method, or of a name that is not in ``METHODS``."""
    name = canonical(method or "")
    unknown = UNUSED_STYLES[crc32(name.encode()) % len(UNUSED_STYLES)]
    return (METHOD_STYLES | OTHER_STYLES).get(name, unknown)


def line_styles(lines: Iterable) -> dict[tuple[str, str], tuple[str, str]]:
    """Returns {(attention, row): (color, marker)} for lines with the attributes attention, row and method.

    Rows of the same attention and method, such as those that differ only in k, get different shades of the
    method's color and different markers.
    """
    counts = Counter()
    styles = {}
    for line in lines:
        if (line.attention, line.row) not in styles:
            color, marker = method_style(line.method)
            n = counts[line.attention, color, marker]
            counts[line.attention, color, marker] += 1
            marker = MARKERS[(MARKERS.index(marker) + 4 * n) % len(MARKERS)]
            styles[line.attention, line.row] = shade(color, n), marker
    return styles


def shade(color: str, n: int) -> str:
    """Returns the ``n``-th shade of a color; the 0-th is the color itself."""
    share = SHADES[n % len(SHADES)]
    target = 255 if share > 0 or color == BLACK else 0
    shaded = "#"
    for channel in bytes.fromhex(color.removeprefix("#")):
        shaded += f"{round(channel + abs(share) * (target - channel)):02x}"
    return shaded
