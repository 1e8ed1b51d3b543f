"""One look for every picture: line style, marker and colour tell arms apart, so grey print and colour-blind eyes lose nothing.

matplotlib is imported inside the functions, with the Agg canvas and no pyplot: no display, no global state. Files are
deterministic: a fixed salt for SVG ids, no date, no version.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

P = ParamSpec("P")
T = TypeVar("T")

WIDTH_IN = 7.2
DPI = 150
INK, MUTED, GRID = "#1a1a1a", "#595959", "#d9d9d9"
WARN = "#b00020"

LOOKS: tuple[dict[str, Any], ...] = (
    {"color": "#0a2f6b", "linestyle": "-", "marker": "o"},
    {"color": "#d55e00", "linestyle": "--", "marker": "s"},
    {"color": "#1b7a4b", "linestyle": "-.", "marker": "^"},
    {"color": "#aa4499", "linestyle": ":", "marker": "D"},
    {"color": "#e69f00", "linestyle": (0, (5, 1, 1, 1, 1, 1)), "marker": "v"},
    {"color": "#56b4e9", "linestyle": (0, (8, 2)), "marker": "P"},
    {"color": "#4d4d4d", "linestyle": (0, (1, 1)), "marker": "X"},
)
"""One entry per arm, in the order in which arms first appear; colours keep apart in lightness too."""

_RC: Any = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelsize": 9,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "text.color": INK,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "lines.linewidth": 1.6,
    "lines.markersize": 5,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
    "svg.hashsalt": "evenhand",
    "svg.fonttype": "path",
    "text.parse_math": False,
}


def styled(function: Callable[P, T]) -> Callable[P, T]:
    """Run under the one style, without touching anybody else's settings."""

    @wraps(function)
    def inside(*args: P.args, **kwargs: P.kwargs) -> T:
        import matplotlib as mpl

        with mpl.rc_context():
            mpl.rcdefaults()
            mpl.rcParams.update(_RC)
            return function(*args, **kwargs)

    return inside


def grid(rows: int, columns: int, *, row_in: float, **options: Any) -> tuple[Figure, list[Axes]]:
    """A figure of the page's width with rows x columns axes, in reading order."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH_IN, row_in * rows + 0.7), dpi=DPI, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(rows, columns, squeeze=False, **options)
    return figure, [axis for line in axes for axis in line]


def look(names: Sequence[str], name: str) -> dict[str, Any]:
    """Colour, line style and marker of an arm, by its place among all arms of the picture."""
    return dict(LOOKS[list(dict.fromkeys(names)).index(name) % len(LOOKS)])


def legend(figure: Figure, entries: Sequence[tuple[Any, str]]) -> None:
    """One legend above the picture. Names are set afterwards: matplotlib drops labels that begin with an underscore."""
    if not entries:
        return
    in_one_row = sum(len(name) + 8 for _, name in entries) <= 115
    columns = len(entries) if in_one_row else max(1, min(len(entries), 95 // (max(len(name) for _, name in entries) + 8)))
    made = figure.legend(
        [handle for handle, _ in entries], ["x" * len(name) for _, name in entries], loc="outside upper left", ncols=columns
    )
    for text, (_, name) in zip(made.get_texts(), entries, strict=True):
        text.set_text(name)


def footer(figure: Figure, notes: Sequence[str]) -> None:
    """Notes below the picture, such as "reference model, not a measurement"."""
    if notes:
        import textwrap

        text = "\n".join(line for note in notes for line in textwrap.wrap(note, 115))
        figure.supxlabel(text, fontsize=8, color=MUTED, ha="left", x=0.01)


def save(figure: Figure, stem: Path) -> list[Path]:
    """Write stem.svg and stem.png; the same figure gives the same bytes."""
    paths = []
    for suffix, metadata in ((".svg", {"Date": None, "Creator": None}), (".png", {"Software": None})):
        path = stem.with_name(stem.name + suffix)
        _save(figure, path, metadata)
        paths.append(path)
    return paths


@styled
def _save(figure: Figure, path: Path, metadata: dict[str, Any]) -> None:
    figure.savefig(path, dpi=DPI, metadata=metadata)


def plain(axis: Axes, *, x: str, y: str, title: str = "") -> None:
    """Labels with their units; figures in full, thousands separated."""
    from matplotlib.ticker import FuncFormatter, ScalarFormatter

    axis.set_xlabel(x)
    axis.set_ylabel(y)
    axis.set_title(title)
    for side in (axis.xaxis, axis.yaxis):
        big = max(abs(limit) for limit in side.get_view_interval()) >= 1000
        side.set_major_formatter(
            FuncFormatter(lambda value, _: f"{value:,.10g}") if big else ScalarFormatter(useOffset=False, useMathText=False)
        )
