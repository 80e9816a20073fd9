"""Pages and their pictures: SVG in the page's own colours, so that they follow its dark and printed forms."""

from __future__ import annotations

import html
import io
import re
from collections.abc import Callable
from typing import Any, Literal

from snefy_ldl._internal.extras import extra
from snefy_ldl._internal.version import __version__
from snefy_ldl.plots import style
from snefy_ldl.plots.densities import shade_steps

#: Shades of densities on a dark page, from nothing to certain.
DARK_SHADES = ("#16283a", "#1c3f5c", "#245f8b", "#3b8dc0", "#7cc0e6", "#d9f0ff")
#: Colours of the labels on a dark page.
DARK_LABELS = ("#4aa8e0", "#f0b63a", "#2fc39a", "#e09cc2", "#86cdf5", "#f08a4b", "#b5b5b5", "#f0e86a")
#: Where a triangle lies in its picture, with room for names and numbers around it.
TRIANGLE = (0.02, 0.19, 0.96, 0.72)
#: Points per inch, and the edge around a picture in inches.
POINTS, EDGE = 72.0, 0.04
#: Ids that matplotlib gives to every group; nothing refers to them.
GROUP_IDS = re.compile(r' id="[A-Za-z0-9]+_\d+"')
NUMBERS = re.compile(r"-?\d+\.\d{3,}")


def color_variables() -> list[tuple[str, str, str]]:
    """The colours of pictures: name of the page's variable, on a light page, and on a dark one.

    Returns:
        Triples of texts.

    Example:
        >>> [name for name, _, _ in color_variables()][:4]
        ['ink', 'quiet', 'frame', 'faint']
    """
    colors = [
        ("ink", style.INK, "#e8eef4"),
        ("quiet", style.QUIET, "#9fb0c0"),
        ("frame", style.FRAME, "#4a5a6a"),
        ("faint", style.FAINT, "#2b3947"),
        ("paper", "#ffffff", "#17212c"),
        ("on", style.ON_DARK, style.ON_LIGHT),  # on a dark page the labels' colours are light
    ]
    colors += [(f"l{k}", *pair) for k, pair in enumerate(zip(style.LABEL_COLORS, DARK_LABELS))]
    shades = zip(shade_steps(style.SHADES), shade_steps(DARK_SHADES))
    colors += [(f"m{k}", *pair) for k, pair in enumerate(shades)]
    return [(name, light.lower(), dark.lower()) for name, light, dark in colors]


class Pictures:
    """Draws pictures as text for a page; ids are unique within the page.

    Example:
        >>> text = Pictures().draw("an empty frame", (2.0, 1.0), lambda ax: ax.set_xlim(0, 1))
        >>> text[:4], 'aria-label="an empty frame"' in text
        ('<svg', True)
    """

    def __init__(self) -> None:
        self._names = {light: f"var(--{name})" for name, light, _ in reversed(color_variables())}
        self._made = 0

    def draw(
        self, title: str, size: tuple[float, float], paint: Callable[..., Any], projection: str | None = None
    ) -> str:
        """A picture on one pair of axes.

        Args:
            title: What it shows, for those who cannot see it.
            size: Width and height in inches; text is as large as on paper.
            paint: Draws on the axes that it gets as ``ax``.
            projection: "ternary" for three labels.

        Returns:
            An ``svg`` element.

        Raises:
            ImportError: matplotlib or mpltern is not installed.
        """
        if projection == "ternary":
            with extra("plot", "the page's triangles need mpltern"):
                import mpltern  # noqa: F401 - registers the projection
        # what stands around one pair of axes is cut to size when it is saved, so there is no need to lay it out first;
        # a triangle's names and numbers have a known size, and measuring them takes a while
        place = TRIANGLE if projection == "ternary" else None
        return self.figure(
            title,
            size,
            lambda figure: paint(ax=figure.add_axes(place or (0.1, 0.1, 0.8, 0.8), projection=projection)),
            layout=None,
            cut=place is None,
        )

    def figure(
        self,
        title: str,
        size: tuple[float, float],
        paint: Callable[[Any], Any],
        *,
        layout: Literal["constrained"] | None = "constrained",
        cut: bool = True,
    ) -> str:
        """A picture on a whole figure.

        Args:
            title: What it shows, for those who cannot see it.
            size: Width and height in inches.
            paint: Draws on the figure it is given.
            layout: How matplotlib places several axes; None leaves them where they are.
            cut: Cut the picture to what is drawn on it.

        Returns:
            An ``svg`` element.

        Raises:
            ImportError: matplotlib is not installed.
        """
        import matplotlib  # an extra, there by now: the colours needed it
        from matplotlib.figure import Figure

        self._made += 1
        figure = Figure(figsize=size, dpi=POINTS, layout=layout)  # measured at the size at which it is drawn
        paint(figure)
        content = io.StringIO()
        with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": f"picture {self._made}"}):
            figure.savefig(content, format="svg", transparent=True, metadata={"Date": None})
        return self._tidy(content.getvalue(), title, _view(figure) if cut else None)

    def _tidy(self, text: str, title: str, view: tuple[float, ...] | None) -> str:
        """The element alone, with the page's font and colours, unique ids and no more digits than one can see."""
        text = text[text.index("<svg") :]
        text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
        text = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", text, flags=re.DOTALL)
        text = GROUP_IDS.sub("", text)
        head = re.match(r"<svg[^>]*>", text)
        assert head is not None
        box = re.search(r'viewBox="([^"]+)"', head.group())
        assert box is not None
        seen = box.group(1) if view is None else " ".join(f"{number:.2f}" for number in view)
        width = 1.5 * float(seen.split()[2])  # not larger than one and a half times what paper would show
        opening = (
            f'<svg viewBox="{seen}" role="img" aria-label="{html.escape(title)}" style="max-width: {width:.0f}px">'
        )
        text = opening + text[head.end() :]
        # a name inside the picture of ids that only it may use
        text = re.sub(r'(id="|url\(#|href="#)', rf"\1f{self._made}-", text)
        text = text.replace("xlink:href", "href")
        text = re.sub(r"'DejaVu Sans'[^;\"]*", "var(--font)", text)
        text = NUMBERS.sub(lambda match: f"{float(match.group()):.2f}".rstrip("0").rstrip("."), text)
        text = re.sub(r"#[0-9a-f]{6}\b", lambda match: self._names.get(match.group(), match.group()), text)
        return re.sub(r"\n\s*", "\n", text)


def _view(figure: Any) -> tuple[float, ...]:
    """What is drawn on a figure, with a thin edge, as the ``viewBox`` of its SVG: left, top, width, height in points.

    A picture is drawn once and then looked at through this window. matplotlib's own ``bbox_inches="tight"`` draws it
    twice.
    """
    from matplotlib.backends.backend_svg import RendererSVG  # an extra, there by now

    width, height = figure.get_size_inches()
    pen = RendererSVG(POINTS * width, POINTS * height, io.StringIO(), image_dpi=POINTS)
    box = figure.get_tightbbox(pen).padded(EDGE)
    return tuple(POINTS * float(number) for number in (box.x0, height - box.y1, box.width, box.height))


def render_page(template: str, **content: Any) -> str:
    """A page out of one of the templates, with the colours of its pictures and the library's version.

    Args:
        template: Name of the file.
        content: The values of the template.

    Returns:
        One HTML document.

    Raises:
        ImportError: jinja2 is not installed.
    """
    with extra("plot", "the page needs jinja2 and matplotlib"):
        import jinja2
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("snefy_ldl.apps.cli"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
    )
    return environment.get_template(template).render(colors=color_variables(), version=__version__, **content)
