"""Check the built site: internal links and anchors exist, and no page loads anything from another server.

python docs/check_site.py docs/_build/html
"""

from __future__ import annotations

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Page(HTMLParser):
    """The ids and links of a page, and the resources that a browser loads with it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.fetched: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Record what a tag refers to."""
        values = {name: value for name, value in attrs if value is not None}
        self.ids |= {values[name] for name in ("id", "name") if name in values}
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        elif (
            tag == "link"
            and "href" in values
            and values.get("rel") not in ("canonical", "author", "index", "search", "next", "prev")
        ):
            self.fetched.append(values["href"])
        elif "src" in values:
            self.fetched.append(values["src"])


def find_faults(site: Path) -> list[str]:
    """Return a list of problems, one sentence each."""
    pages = {
        file: Page(file.read_text(encoding="utf-8"))
        for file in sorted(site.rglob("*.html"))
        if "_static" not in file.parts
    }
    faults = []
    for file, page in pages.items():
        for address in [*page.links, *page.fetched]:
            parts = urlsplit(address)
            foreign = bool(parts.scheme or parts.netloc)
            if foreign:
                if address in page.fetched and parts.scheme != "data":
                    faults.append(f"{file.relative_to(site)} fetches {address}")
                continue
            goal = (file.parent / unquote(parts.path)).resolve() if parts.path else file
            goal = goal / "index.html" if goal.is_dir() else goal
            if not goal.exists():
                faults.append(f"{file.relative_to(site)} links to {address}, which is not there")
            elif parts.fragment and goal in pages and unquote(parts.fragment) not in pages[goal].ids:
                faults.append(f"{file.relative_to(site)} links to {address}, which has no such place")
    for style in site.rglob("*.css"):
        if "@import url(http" in style.read_text(encoding="utf-8", errors="replace"):
            faults.append(f"{style.relative_to(site)} imports from elsewhere")
    return faults


def main(site: Path) -> int:
    """Print every problem, and return 1 if there is any."""
    faults = find_faults(site.resolve())
    for fault in faults:
        print(fault)
    print(f"{len(list(site.rglob('*.html')))} pages, {len(faults)} faults")
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
