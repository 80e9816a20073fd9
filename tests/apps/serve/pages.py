"""What the browser's tests share: a page opened, and what went wrong in it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np

from snefy_ldl.apps.serve.explorer import PageRows, make_page

#: The page's answer for some rows, as plain values.
ANSWERS = """rows => rows.map(row => {
  explorer.state.row = row; explorer.state.moved = false; explorer.state.x = explorer.rows.x(row);
  const answer = explorer.answerAt(explorer.state.x), list = values => values ? Array.from(values) : null;
  return {mean: list(answer.mean), low: list(answer.low), high: list(answer.high), zero: list(answer.zero),
          covariance: list(answer.covariance()), greater: answer.greater(0, 1), calibrated: answer.calibrated};
})"""


def open_page(browser: Any, folder: Path, model: Any, rows: Any, intervals: Any = None, **options: Any) -> Any:
    """A page of the model in a new tab, once it has drawn its first answer."""
    file = folder / f"page-{len(list(folder.iterdir()))}.html"
    rows = rows if isinstance(rows, PageRows) else PageRows(rows)
    file.write_text(make_page(model, rows, "model", intervals), encoding="utf-8")
    return open_file(browser, file.as_uri(), **options)


def open_file(browser: Any, address: str, **options: Any) -> Any:
    """A tab at an address; ``tab.faults`` lists errors and requests to anywhere else."""
    tab = browser.new_page(**options)
    tab.faults = []
    tab.on("pageerror", lambda error: tab.faults.append(str(error)))
    tab.on("console", lambda message: tab.faults.append(message.text) if message.type in ("error", "warning") else None)
    tab.on("requestfailed", lambda request: tab.faults.append(request.url))
    here = address.split("#")[0]
    tab.on(
        "request",
        lambda request: None if request.url.startswith((here, "data:", "blob:")) else tab.faults.append(request.url),
    )
    tab.goto(address)
    wait_until(tab, "Boolean(window.explorer && explorer.answer)")
    return tab


def wait_until(tab: Any, expression: str, seconds: float = 60.0) -> None:
    """Wait until an expression holds. Asked from outside, since a page's policy may forbid ``wait_for_function``."""
    end = time.monotonic() + seconds
    while not tab.evaluate(expression):
        assert time.monotonic() < end, f"{expression} did not become true within {seconds:g} s; {tab.faults}"
        tab.wait_for_timeout(20)


def answers(tab: Any, rows: list[int]) -> dict[str, Any]:
    """The page's numbers for some rows, stacked."""
    parts = tab.evaluate(ANSWERS, rows)
    return {key: None if parts[0][key] is None else np.array([part[key] for part in parts]) for key in parts[0]}
