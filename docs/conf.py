"""The site: ``make docs`` builds it, ``make docs-serve`` shows it. Nothing is downloaded."""

from __future__ import annotations

import inspect
import os
import re
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE)]
os.environ.setdefault("OMP_NUM_THREADS", "1")  # examples are small: threads would wait for each other

from _site.inventories import MAPPING, write_inventories  # noqa: E402
from _site.links import link_names, name_base  # noqa: E402
from _site.mathml import draw_block, draw_inline  # noqa: E402
from _site.pages import turn_links, write_pages  # noqa: E402
from _site.search import SearchQuestions  # noqa: E402
from docutils import nodes  # noqa: E402

from snefy_ldl import __version__  # noqa: E402

write_pages()
write_inventories(HERE / "_build" / "inventories")

project = "SNEFY-LDL"
author = "The SNEFY-LDL authors"
version = release = __version__
#: The address of the public repository, such as "https://github.com/OWNER/NAME"; it adds "Open in Colab" to tutorials.
repository = ""
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx.ext.intersphinx",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
]
exclude_patterns = [
    "_build",
    "gallery",
    "auto_gallery/**/*.ipynb",
    "auto_gallery/sg_execution_times.rst",
    "sg_execution_times.rst",
]
highlight_language = "text"
nitpicky = False

# -- Markdown
myst_enable_extensions = ["colon_fence", "dollarmath", "deflist"]
myst_heading_anchors = 4
html_math_renderer = "mathml"

# -- reference
autosummary_generate = False  # _site.pages writes one page per name
autodoc_member_order = "bysource"
autodoc_typehints = "none"  # shapes and meanings are in the docstrings
autodoc_default_options = {"exclude-members": "__init__"}
napoleon_google_docstring = True
napoleon_numpy_docstring = True  # members that come from scikit-learn
napoleon_use_rtype = False
napoleon_use_ivar = True

toc_object_entries_show_parents = "hide"

# Names of other libraries link to their public pages. The inventories are small files that only list the names used
# here, so no download is needed; SNEFY_LDL_INTERSPHINX=1 uses the full inventories instead.
if os.environ.get("SNEFY_LDL_INTERSPHINX"):
    intersphinx_mapping: dict[str, Any] = {name: (address, None) for name, address in MAPPING.items()}
else:
    folder = HERE / "_build" / "inventories"
    intersphinx_mapping = {name: (address, str(folder / f"{name}.inv")) for name, address in MAPPING.items()}

# -- gallery

sphinx_gallery_conf = {
    "examples_dirs": "gallery",
    "gallery_dirs": "auto_gallery",
    "within_subsection_order": "FileNameSortKey",
    "abort_on_example_error": True,
    "download_all_examples": False,
    "capture_repr": (),
    "show_signature": False,
    "show_memory": False,
    "thumbnail_size": (560, 390),
    "reset_modules": ("matplotlib", "seaborn", "_site.gallery.enlarge_text"),
    "min_reported_time": 1e9,
    "write_computation_times": False,
    "remove_config_comments": True,
    "doc_module": ("snefy_ldl",),
    "reference_url": {"snefy_ldl": None},
    "copyfile_regex": "",
}

# -- pages
html_theme = "pydata_sphinx_theme"
html_title = "SNEFY-LDL"
html_static_path = ["_static"]
templates_path = ["_templates"]
html_css_files = ["site.css"]
html_js_files = [("mode.js", {"priority": 100})]
html_show_sourcelink = False
html_copy_source = False
html_search_scorer = str(HERE / "_static" / "scorer.js")
# Without this value, a change of the search alone would not rebuild the pages.
html_context = {"search": (HERE / "_static" / "scorer.js").read_text(encoding="utf-8")}
html_sidebars = {
    **{pages: ["contents.html"] for pages in ("*", "tutorials/*", "results/*")},
    **{pages: ["sidebar-nav-bs"] for pages in ("reference/*", "reference/names/*", "auto_gallery/**")},
    "index": [],
}
html_theme_options = {
    "logo": {"text": "SNEFY-LDL"},
    "navbar_align": "left",
    "navbar_center": ["top-links"],
    "navbar_end": ["theme-switcher"],
    "show_prev_next": False,
    "collapse_navigation": True,
    "navigation_depth": 2,
    "show_toc_level": 2,
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": [],
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
    "navigation_with_keys": False,
}
copyright = "the SNEFY-LDL authors, MIT licence"
copybutton_prompt_text = r"\$ |>>> |\.\.\. "
copybutton_prompt_is_regexp = True


def lead_inside(app: Any, page: str, source: list[str]) -> None:
    """Turn links to files outside docs/ into links inside the site, and add the Colab badge to links to notebooks."""
    file = Path(app.env.doc2path(page))
    if file.suffix == ".md":
        source[0] = turn_links(source[0], file.parent, file.parent)
        source[0] = re.sub(r"(\[Notebook\]\((\w+\.ipynb)\))", colab_badge, source[0])


def colab_badge(link: re.Match[str]) -> str:
    """Return the link to a notebook, followed by a badge if the repository is known."""
    if not repository:
        return link[0]
    path = repository.removeprefix("https://github.com/") + f"/blob/main/docs/tutorials/{link[2]}"
    return f"{link[0]} {{bdg-link-primary}}`Open in Colab <https://colab.research.google.com/github/{path}>`"


def split_keywords(app: Any, doctree: nodes.document) -> None:
    """Separate keywords into single words, because the search treats the text between two commas as one word."""
    for node in doctree.findall(nodes.meta):
        if node.get("name") == "keywords":
            node["content"] = ", ".join(re.findall(r"\w+", node["content"]))


def skip_foreign(app: Any, what: str, name: str, value: Any, skip: bool, options: Any) -> bool | None:
    """Leave out members defined by torch, scikit-learn or Python."""
    function = getattr(value, "fget", None) or getattr(value, "__func__", None) or getattr(value, "func", None) or value
    home = getattr(function, "__module__", None)
    if what == "class" and isinstance(home, str) and not home.startswith("snefy_ldl"):
        return True
    return None


def add_arguments(app: Any, what: str, name: str, value: Any, options: Any, lines: list[str]) -> None:
    """Add the arguments of the base class to an overriding method whose docstring does not list them."""
    if what != "method" or any(line.strip() == "Args:" for line in lines):
        return
    *path, owner, method = name.split(".")
    bases = getattr(getattr(import_module(".".join(path)), owner, None), "__mro__", ())
    for base in bases:
        text = (inspect.getdoc(vars(base)[method]) or "") if method in vars(base) else ""
        if "Args:" in text and base.__module__.startswith("snefy_ldl"):
            lines += ["", *text[text.index("Args:") :].splitlines()]
            return


def escape_marks(app: Any, what: str, name: str, value: Any, options: Any, lines: list[str]) -> None:
    """Escape shapes such as (*batch, L) and norms such as |x|, which are not reStructuredText markup."""
    for number, line in enumerate(lines):
        if not line.lstrip().startswith((">>>", "...")):
            parts = re.split(r"(`+[^`]*`+)", line)
            parts[::2] = [re.sub(r"(?<![*\\])\*(?=\w)(?![^*]*\w\*)|\|", r"\\\g<0>", part) for part in parts[::2]]
            lines[number] = "".join(parts)


def link_foreign(app: Any, what: str, name: str, value: Any, options: Any, lines: list[str]) -> None:
    """Link the names from scikit-learn, torch and pandas in a docstring."""
    if what in ("class", "exception") and inspect.isclass(value):
        name_base(value, lines)
    link_names(lines)


def setup(app: Any) -> None:
    """Register the extensions: MathML, a search that accepts questions, links that stay inside the site."""
    app.add_html_math_renderer("mathml", (draw_inline, None), (draw_block, None))
    app.add_search_language(SearchQuestions)
    app.connect("source-read", lead_inside)
    app.connect("doctree-read", split_keywords)
    app.connect("autodoc-skip-member", skip_foreign)
    app.connect("autodoc-process-docstring", add_arguments, priority=300)
    app.connect("autodoc-process-docstring", link_foreign, priority=350)
    app.connect("autodoc-process-docstring", escape_marks, priority=400)  # before napoleon
