"""How a method looks in pictures: one colour and marker for each, the same in all of them."""

from zlib import crc32

from fairseq_lrpe.methods import canonical

BLACK, GREY, BROWN, RED, VERMILLION, ORANGE = "#000000", "#7f7f7f", "#8c510a", "#b2182b", "#d55e00", "#e69f00"
OLIVE, LIME, GREEN, TEAL, SKY, BLUE = "#808000", "#7fbc41", "#009e73", "#1fbfb8", "#56b4e9", "#0072b2"
NAVY, PURPLE, MAGENTA, PINK = "#1f2a7a", "#6a3d9a", "#d01c8b", "#cc79a7"
COLOURS = (BLACK, GREY, BROWN, RED, VERMILLION, ORANGE, OLIVE, LIME)
COLOURS += (GREEN, TEAL, SKY, BLUE, NAVY, PURPLE, MAGENTA, PINK)
MARKERS = "os^vDPX*phd<>8H"

LOOKS = {  # methods that share a paper's table differ in colour
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
FREE = sorted({(colour, marker) for colour in COLOURS for marker in MARKERS} - set(LOOKS.values()))

STYLES = {"linear": "-", "softmax": (0, (5, 2))}
"""An attention's lines."""


def look(method: str | None) -> tuple[str, str]:
    """Returns a method's colour and marker; those of one that is not in LOOKS follow from its name."""
    name = canonical(method or "")
    return LOOKS[name] if name in LOOKS else FREE[crc32(name.encode()) % len(FREE)]
