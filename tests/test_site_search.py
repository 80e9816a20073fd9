"""The built site in a browser: its search answers, pages fit a phone, nothing is fetched from elsewhere."""

from __future__ import annotations

import functools
import http.server
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from test_site import FIRST_HIT, FIRST_THREE

pytestmark = pytest.mark.browser

SITE = Path(__file__).parent.parent / "docs" / "_build" / "html"
#: Pages that are looked at: one of each kind.
LOOKED_AT = [
    *("index", "guide", "conformal", "votes", "tutorials/soil", "math"),
    *("auto_gallery/index", "reference/index", "results/peer"),
]


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Serves files and says nothing."""

    def log_message(self, *words: Any) -> None:
        pass


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    if not (SITE / "search.html").exists():
        pytest.skip("the site is not built: make docs")
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(SITE)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}/"
    server.shutdown()
    thread.join()
    server.server_close()


def first_hits(tab: Any, address: str, question: str) -> list[str]:
    """Pages of the first three hits of a search."""
    tab.goto(f"{address}search.html?q={quote(question)}")
    tab.wait_for_function("document.querySelector('.search-summary')?.textContent.match(/found|did not match/)")
    targets = tab.eval_on_selector_all("ul.search li > a", "links => links.map(link => link.getAttribute('href'))")
    return [re.sub(r"\.html.*", "", target) for target in targets[:3]]


def test_one_search_answers_each_question(browser: Any, address: str) -> None:
    tab = browser.new_page()
    found = {question: first_hits(tab, address, question) for question in (*FIRST_HIT, *FIRST_THREE)}
    tab.close()
    missed = {question: found[question] for question, pages in FIRST_HIT.items() if found[question][0] not in pages}
    missed |= {question: found[question] for question, page in FIRST_THREE.items() if page not in found[question]}
    assert missed == {}


@pytest.mark.parametrize("width", [1400, 390])
def test_pages_fit_and_fetch_nothing_from_elsewhere(browser: Any, address: str, width: int) -> None:
    tab = browser.new_page(viewport={"width": width, "height": 844})
    foreign: list[str] = []
    tab.on("request", lambda request: foreign.append(request.url) if request.url.startswith("http") else None)
    for page in LOOKED_AT:
        tab.goto(f"{address}{page}.html")
        tab.wait_for_load_state("load")
        assert tab.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), (
            f"{page} is wider than {width}"
        )
        blocks = "[...document.querySelectorAll('div.highlight pre')].filter(b => b.scrollWidth > b.clientWidth + 1)"
        assert width < 1400 or tab.evaluate(f"{blocks}.length") == 0, f"code on {page} scrolls"
    tab.close()
    assert [url for url in foreign if not url.startswith(address)] == []
