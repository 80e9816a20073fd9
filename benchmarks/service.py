"""The service under load, and the explorer's page in Chromium; results/service.md.

    OMP_NUM_THREADS=1 python benchmarks/service.py                         # all of it, some 15 minutes
    OMP_NUM_THREADS=1 python benchmarks/service.py load overload --seconds 20
    OMP_NUM_THREADS=1 python benchmarks/service.py schema --schemathesis /path/to/schemathesis

Server and load generator share the machine's cores. The model is the default fit of the library on the made-up city,
without guides unless --guides is given; one row a request, with a 90 % interval.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from common import machine, markdown, write
from service_load import at_rate, get, in_turn, post
from snefy_ldl import SnefyLDL
from snefy_ldl.apps.serve.explorer import PageRows, make_page
from snefy_ldl.datasets import make_city_districts

RATE = 200.0
PARTS = ("load", "overload", "memory", "fuzz", "kill", "schema", "explorer")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]


class Server:
    """The command ``snefy-ldl serve`` in a process of its own."""

    def __init__(self, folder: Path, *options: str) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = int(free.getsockname()[1])
        self.command = [
            sys.executable,
            "-m",
            "snefy_ldl",
            "serve",
            str(folder),
            "--port",
            str(self.port),
            "-q",
            *options,
        ]
        self.start()

    def start(self) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(self.command, stderr=subprocess.DEVNULL, env=environment)
        for _ in range(900):
            try:
                socket.create_connection(("127.0.0.1", self.port), 1.0).close()
                return
            except OSError:
                time.sleep(0.1)
        raise RuntimeError("the service did not start")

    def resident_mb(self) -> float:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return float(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1]) / 1e3

    def cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)


def one_row_requests(X: pd.DataFrame) -> list[bytes]:
    return [post("/v1/predict", {"rows": [row], "levels": [0.9]}) for row in X.to_dict("records")]


# -- parts -------------------------------------------------------------------------------------------------------------


def load(server: Server, requests: list[bytes], seconds: float) -> dict[str, Any]:
    asyncio.run(at_rate(server.port, requests, RATE / 4, 2.0))  # connections and tables
    before = server.cpu_seconds()
    outcome = asyncio.run(at_rate(server.port, requests, RATE, seconds))
    spent = server.cpu_seconds() - before
    return {
        "rate": RATE,
        "seconds": seconds,
        "p50_ms": round(outcome.quantile_ms(0.5), 2),
        "p99_ms": round(outcome.quantile_ms(0.99), 2),
        "server_cpu_ms_a_request": round(1e3 * spent / (RATE * seconds), 2),
        "statuses": outcome.statuses,
        "broken": outcome.broken,
    }


def probe(port: int, seconds: float) -> list[float]:
    """Times of /healthz, asked twenty times a second from a process of its own."""
    times, end = [], time.perf_counter() + seconds
    while time.perf_counter() < end:
        began = time.perf_counter()
        with socket.create_connection(("127.0.0.1", port), 10.0) as connection:
            connection.sendall(get("/healthz"))
            connection.recv(4096)
        times.append(time.perf_counter() - began)
        time.sleep(0.05)
    return times


def overload(server: Server, requests: list[bytes], seconds: float) -> dict[str, Any]:
    async def both() -> tuple[Any, list[float], float]:
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            health = asyncio.get_running_loop().run_in_executor(pool, probe, server.port, seconds)
            flooded = await at_rate(server.port, requests, 5 * RATE, seconds, 256)
            answered = sorted(await health)
        ended = time.perf_counter()
        while True:  # recovered: twenty in a row answered within 50 ms
            after = await at_rate(server.port, requests, RATE / 2, 0.2)
            if after.statuses == {200: 20} and after.quantile_ms(1.0) < 50.0:
                return flooded, answered, time.perf_counter() - ended
            if time.perf_counter() - ended > 30.0:
                return flooded, answered, float("nan")

    flooded, health, recovered = asyncio.run(both())
    return {
        "rate": 5 * RATE,
        "statuses": flooded.statuses,
        "broken": flooded.broken,
        "healthz_p50_ms": round(1e3 * health[len(health) // 2], 2),
        "healthz_p99_ms": round(1e3 * health[int(0.99 * (len(health) - 1))], 2),
        "healthz_worst_ms": round(1e3 * health[-1], 2),
        "recovered_s": round(recovered, 2),
    }


def memory(server: Server, requests: list[bytes], count: int) -> dict[str, Any]:
    asyncio.run(in_turn(server.port, requests, max(200, count // 20)))
    sizes = [server.resident_mb()]
    for _ in range(4):
        outcome = asyncio.run(in_turn(server.port, requests, count // 4))
        assert set(outcome.statuses) <= {200, 503}, outcome.statuses
        sizes.append(server.resident_mb())
    return {"requests": count, "resident_mb": [round(size, 1) for size in sizes]}


def fuzz(server: Server, requests: list[bytes], count: int) -> dict[str, Any]:
    """Malformed bodies: bytes of good ones changed, cut and doubled, by a seed."""
    chance, bodies = random.Random(0), []
    good = [request.split(b"\r\n\r\n", 1)[1] for request in requests[:50]]
    paths = ("predict", "density", "groups", "condition", "update")
    for _ in range(count):
        body = bytearray(chance.choice(good))
        for _ in range(chance.randint(1, 6)):
            at = chance.randrange(len(body))
            deed = chance.randrange(4)
            if deed == 0:
                body[at] = chance.randrange(256)
            elif deed == 1:
                del body[at : at + chance.randint(1, 20)]
            elif deed == 2:
                body[at:at] = body[at : at + chance.randint(1, 40)]
            else:
                body[at:at] = chance.choice([b"null", b"[]", b"{}", b"1e999", b"NaN", b'"', b"-", b"\xff", b"[" * 500])
            body = body or bytearray(b"{")
        bodies.append(post(f"/v1/{chance.choice(paths)}", bytes(body)))
    before = server.resident_mb()
    outcome = asyncio.run(in_turn(server.port, bodies, count, 4))
    return {
        "bodies": count,
        "statuses": outcome.statuses,
        "broken": outcome.broken + outcome.half,
        "resident_mb": [round(before, 1), round(server.resident_mb(), 1)],
    }


def kill(server: Server, requests: list[bytes], rounds: int) -> dict[str, Any]:
    """Kill without warning under load, start again, and count answers that were cut."""

    async def under_load() -> Any:
        flood = asyncio.create_task(at_rate(server.port, requests, RATE, 3.0))
        await asyncio.sleep(1.0)
        server.process.kill()
        server.process.wait()
        return await flood

    whole = broken = half = 0
    for _ in range(rounds):
        outcome = asyncio.run(under_load())
        whole, broken, half = whole + sum(outcome.statuses.values()), broken + outcome.broken, half + outcome.half
        server.start()
    after = asyncio.run(at_rate(server.port, requests, RATE / 4, 2.0))
    return {"kills": rounds, "whole": whole, "refused": broken, "half": half, "after_restart": after.statuses}


def schema(server: Server, program: str | None, examples: int) -> dict[str, Any]:
    if program is None:
        return {"skipped": "name the program with --schemathesis"}
    command = [
        *(program, "run", f"http://127.0.0.1:{server.port}/openapi.json", "--checks", "not_a_server_error"),
        *(
            "--max-examples",
            str(examples),
            "--seed",
            "0",
            "--exclude-path",
            "/",
            "--phases",
            "examples,coverage,fuzzing",
        ),
    ]
    with tempfile.TemporaryDirectory() as place:  # it leaves files where it runs
        done = subprocess.run(command, capture_output=True, text=True, cwd=place)
    lines = [line.strip() for line in done.stdout.splitlines() if line.strip()]
    return {"exit_code": done.returncode, "end": lines[-6:]}


def explorer(folder: Path, seconds: float = 5.0) -> dict[str, Any]:
    """Page size, first view of 2,000 rows and frames a second while a slider moves."""
    import shutil

    from playwright.sync_api import sync_playwright

    random_rows, answer = np.random.default_rng(0), {}
    program = shutil.which("chromium") or shutil.which("google-chrome")
    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=program, args=FLAGS)
        for n_labels in (3, 6, 10):
            X = random_rows.normal(size=(2000, 6))
            shares = np.exp(X @ random_rows.normal(size=(6, n_labels)) * 0.5)
            D = shares / shares.sum(1, keepdims=True)
            model = SnefyLDL(guides=None, random_state=0).fit(X[:500], D[:500])
            file = folder / f"page{n_labels}.html"
            file.write_text(make_page(model, PageRows(X), "bench"), encoding="utf-8")
            tab = browser.new_page(viewport={"width": 1280, "height": 900})
            tab.goto(file.as_uri())
            tab.wait_for_function("window.explorer && explorer.answer")
            first = tab.evaluate("performance.getEntriesByName('first view')[0].startTime")
            tab.wait_for_timeout(500)
            moved = tab.evaluate(_DRAG, 1e3 * seconds)
            answer[f"{n_labels} labels"] = {
                "page_mb": round(file.stat().st_size / 1e6, 2),
                "first_view_ms": round(first),
                "frames_per_second": round(moved["frames"] / seconds, 1),
                "median_draw_ms": round(moved["median"], 1),
            }
            tab.close()
        browser.close()
    return answer


_DRAG = """async length => {
  const slider = document.getElementById("feature-0"), low = Number(slider.min), high = Number(slider.max);
  let frames = 0;
  explorer.frames.length = 0;
  const began = performance.now();
  await new Promise(done => {
    const step = () => {
      const time = performance.now() - began;
      if (time > length) { done(); return; }
      slider.value = low + (high - low) * (0.5 + 0.5 * Math.sin(time / 300));
      slider.dispatchEvent(new Event("input"));
      frames += 1;
      requestAnimationFrame(step);
    };
    requestAnimationFrame(step);
  });
  const draws = [...explorer.frames].sort((a, b) => a - b);
  return { frames, median: draws[Math.floor(draws.length / 2)] };
}"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "parts", nargs="*", default=[], choices=[*PARTS, []], help=f"some of {', '.join(PARTS)}; all by default"
    )
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--requests", type=int, default=200_000, help="of the memory part")
    parser.add_argument("--bodies", type=int, default=10_000, help="of the fuzz part")
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--schemathesis", default=None)
    parser.add_argument("--examples", type=int, default=50, help="schemathesis' examples an operation")
    parser.add_argument("--guides", action="store_true", help="a model that also sees SA-BFGS and trees")
    parser.add_argument("--no-write", action="store_true", help="print only")
    options = parser.parse_args()
    wanted = options.parts or list(PARTS)
    city = make_city_districts(n=600, random_state=0)
    X, D = pd.DataFrame(city.X, columns=city.feature_names), pd.DataFrame(city.D, columns=city.label_names)
    facts: dict[str, Any] = {"machine": machine(1), "load_average": os.getloadavg(), "guides": options.guides}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        guides = "auto" if options.guides else None
        model = SnefyLDL(guides=guides, random_state=0).fit(X, D).save(folder / "city")
        requests = one_row_requests(X)
        server = Server(model) if set(wanted) - {"explorer"} else None
        for part in wanted:
            began = time.perf_counter()
            if part == "explorer":
                facts[part] = explorer(folder)
            else:
                assert server is not None
                facts[part] = {
                    "load": lambda: load(server, requests, options.seconds),
                    "overload": lambda: overload(server, requests, min(options.seconds, 15.0)),
                    "memory": lambda: memory(server, requests, options.requests),
                    "fuzz": lambda: fuzz(server, requests, options.bodies),
                    "kill": lambda: kill(server, requests, options.kills),
                    "schema": lambda: schema(server, options.schemathesis, options.examples),
                }[part]()
            print(part, f"({time.perf_counter() - began:.0f} s)", json.dumps(facts[part]), file=sys.stderr, flush=True)
        if server is not None:
            server.stop()
    report(facts, options.no_write)


def report(facts: dict[str, Any], print_only: bool) -> None:
    rows = [{"part": part, "figures": json.dumps(facts[part]).strip("{}")} for part in PARTS if part in facts]
    load_average, about = facts["load_average"][0], facts["machine"]
    text = "\n\n".join(
        [
            "# The service under load",
            "`OMP_NUM_THREADS=1 python benchmarks/service.py`; server and load generator share the cores.",
            f"{about['processor']}, {about['cores']} cores; load average at the start {load_average:.1f}.",
            markdown(rows),
        ]
    )
    if print_only:
        print(text)
    else:
        write("service", facts, text)


if __name__ == "__main__":
    main()
