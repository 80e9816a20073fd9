"""The service: every route against the library itself, wrong input, tokens, limits, reloading."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pandas as pd
import pytest
from starlette.testclient import TestClient

from snefy_ldl import LogRatioLDL, SnefyLDL
from snefy_ldl.apps.serve import answers as answers_module
from snefy_ldl.apps.serve.answers import answer as answer_question
from snefy_ldl.apps.serve.app import create_app
from snefy_ldl.apps.serve.limits import Limits
from snefy_ldl.apps.serve.schemas import Predict
from snefy_ldl.apps.serve.store import load_served
from snefy_ldl.conformal import ConformalIntervals
from snefy_ldl.persistence import load_calibration

LABELS = ["business", "entertainment", "education"]


@pytest.fixture(scope="module")
def client(folder: Path) -> Iterator[TestClient]:
    with TestClient(create_app([folder])) as made:
        yield made


@pytest.fixture(scope="module")
def rows(city: tuple[pd.DataFrame, pd.DataFrame]) -> list[dict[str, float]]:
    return city[0][:3].to_dict("records")


def ask(client: TestClient, path: str, body: Any, status: int = 200) -> Any:
    answer = client.post(f"/v1/{path}", json=body)
    assert answer.status_code == status, answer.text
    return answer.json()


# -- answers against the library ---------------------------------------------------------------------------------------


def test_predictions_are_the_models(client: TestClient, rows: Any, small: SnefyLDL, folder: Path) -> None:
    answer = ask(client, "predict", {"rows": rows, "levels": [0.5, 0.8]})
    X = pd.DataFrame(rows)
    np.testing.assert_allclose(answer["mean"], small.predict(X), atol=1e-12)
    np.testing.assert_allclose(answer["variance"], small.predict_var(X), atol=1e-12)
    ends = np.array(answer["interval"])
    np.testing.assert_allclose(ends[:, :, 0], small.predict_interval(X, 0.5), atol=1e-9)
    state = load_calibration(folder)
    assert state is not None
    conformal = ConformalIntervals.from_dict(small, state).predict_interval(X)
    np.testing.assert_allclose(ends[:, :, 1], conformal, atol=1e-9)
    assert answer["calibrated"] == [False, True]
    assert answer["labels"] == LABELS
    assert np.array(answer["zero"]).max() == 0.0
    own = ask(client, "predict", {"rows": rows, "levels": [0.8], "calibrated": False})
    np.testing.assert_allclose(np.array(own["interval"])[:, :, 0], small.predict_interval(X, 0.8), atol=1e-9)


def test_other_columns_and_lists_of_numbers_are_fine(client: TestClient, rows: Any) -> None:
    body = [{**rows[0], "name": "Old town", "business": 0.2}, list(rows[0].values())]
    first, second = ask(client, "predict", {"rows": body})["mean"]
    assert first == pytest.approx(second, rel=1e-12)  # two rows of a batch may differ in their last bit


def test_condition_and_update_are_those_of_the_model(client: TestClient, rows: Any, small: SnefyLDL) -> None:
    predicted = small.predict_dist(pd.DataFrame(rows))
    answer = ask(client, "condition", {"rows": rows, "known": {"business": 0.4}, "levels": [0.9]})
    other = predicted.condition({"business": 0.4})
    np.testing.assert_allclose(answer["mean"], other.mean)
    np.testing.assert_allclose(np.array(answer["interval"])[:, :, 0], other.quantiles([0.05, 0.95]), atol=1e-9)
    votes = [{"business": 3}, {}, {"education": 1, "business": 2}]
    answer = ask(client, "update", {"rows": rows, "votes": votes})
    after = predicted.posterior([[3, 0, 0], [0, 0, 0], [2, 0, 1]])
    np.testing.assert_allclose(answer["mean"], after.mean)
    np.testing.assert_allclose(np.array(answer["interval"])[:, :, 0], after.quantiles([0.05, 0.95]), atol=1e-7)


# -- its description --------------------------------------------------------------------------------------------------


def test_models_are_listed_with_what_a_row_must_have(client: TestClient, small: SnefyLDL) -> None:
    (listed,) = client.get("/v1/models").json()["models"]
    assert listed["name"] == "city"
    assert (listed["labels"], listed["features"]) == (LABELS, list(small.feature_names_in_))
    assert client.get("/healthz").json() == {"status": "ready"}


# -- wrong input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "row", "field"),
    [
        ({"night_bus_lines": "many"}, 1, "night_bus_lines"),
        ({"night_bus_lines": None}, 1, "night_bus_lines"),
        ({"night_bus_lines": True}, 1, "night_bus_lines"),
        ({"night_bus_lines": 1e300}, 1, "night_bus_lines"),
        ({"night_bus_lines": 10**400}, 1, "night_bus_lines"),
        ({"night_bus_lines": [1]}, 1, "night_bus_lines"),
    ],
)
def test_a_wrong_cell_is_named(client: TestClient, rows: Any, change: Any, row: int, field: str) -> None:
    answer = ask(client, "predict", {"rows": [rows[0], {**rows[1], **change}]}, 422)
    assert (answer["row"], answer["field"]) == (row, field)


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("predict", {}, "rows"),
        ("predict", {"rows": []}, "rows"),
        ("predict", {"rows": "all"}, "rows"),
        ("predict", {"rows": [3]}, "rows.0"),
        ("predict", {"levels": [1.5]}, "levels.0"),
        ("predict", {"leevels": [0.5]}, "leevels"),
        ("condition", {"known": {"gold": 0.5}}, "known"),
        ("update", {"votes": []}, "votes"),
        ("update", {"votes": [{"business": -1}]}, "votes.0.business"),
        ("update", {"votes": [{"business": 10**9}]}, "votes"),
    ],
)
def test_a_wrong_question_names_its_field(client: TestClient, rows: Any, path: str, body: Any, field: str) -> None:
    whole = {"rows": rows[:1], **body} if body else {}
    assert ask(client, path, whole, 422)["field"] == field


def test_what_the_library_refuses_is_422(client: TestClient, rows: Any) -> None:
    known = {"business": 0.7, "education": 0.2}
    assert "leave two labels unknown" in ask(client, "condition", {"rows": rows, "known": known}, 422)["error"]


def test_other_bodies_paths_and_models(client: TestClient, rows: Any) -> None:
    assert client.post("/v1/predict", content=b"<rows/>", headers={"content-type": "text/xml"}).status_code == 422
    typed = {"content-type": "application/json; charset=utf-8"}
    assert client.post("/v1/predict", content=b"{", headers=typed).status_code == 422
    assert client.post("/v1/predict", content=b"[" * 100_000, headers=typed).status_code in (400, 422)
    assert client.get("/v1/predict").status_code == 405
    assert client.get("/nothing").status_code == 404
    assert ask(client, "predict", {"rows": rows, "model": "other"}, 404)["field"] == "model"


# -- limits, tokens, models that change --------------------------------------------------------------------------------


def test_limits_on_body_and_rows(folder: Path, rows: Any) -> None:
    limits = Limits(body_bytes=2000, rows=5)
    app = create_app([folder], limits=limits)
    with TestClient(app) as client:
        assert client.post("/v1/predict", content=b" " * 3000).status_code == 413
        assert client.post("/v1/predict", content=iter([b"{", b"}"])).status_code == 411  # of unknown length
        assert "at most 5" in ask(client, "predict", {"rows": [[1, 2, 3, 4, 5]] * 6}, 422)["error"]


@pytest.mark.slow
def test_every_route_refuses_without_the_token(folder: Path) -> None:
    with TestClient(create_app([folder], token="söcret")) as client:
        right = "Bearer söcret".encode()
        paths = client.get("/openapi.json", headers={b"authorization": right}).json()["paths"]
        assert len(paths) == 6
        for path, methods in {**paths, "/openapi.json": {"get": {}}, "/nothing": {"get": {}}}.items():
            for method in methods:
                for given in (None, b"Bearer wrong", b"Bearer", b"Basic !!", "söcret".encode()):
                    headers = {} if given is None else {b"authorization": given}
                    answer = client.request(method, path, headers=headers)
                    assert answer.status_code == 401, (path, given)
        assert client.get("/healthz", headers={b"authorization": right}).status_code == 200
        assert client.get("/healthz", auth=("anybody", "söcret")).status_code == 200


def test_two_models_answer_by_name(tmp_path: Path, folder: Path, small: SnefyLDL, rows: Any) -> None:
    place = small.save(tmp_path / "second")
    with TestClient(create_app([folder, place])) as client:
        assert ask(client, "predict", {"rows": rows})["model"] == "city"
        assert ask(client, "predict", {"rows": rows, "model": "second"})["model"] == "second"


def test_columns_of_text_and_gaps_are_read_by_the_models_own_reader(
    tmp_path: Path, city: tuple[pd.DataFrame, pd.DataFrame]
) -> None:
    X = city[0].copy()
    X["quarter"] = np.where(X["night_bus_lines"] > 3, "old", np.where(X["mean_rent_eur_per_m2"] > 17, "new", "outer"))
    X.loc[::7, "mean_rent_eur_per_m2"] = np.nan
    model = SnefyLDL(n_neurons=8, epochs=1, guides=None, random_state=0).fit(X, city[1])
    place = model.save(tmp_path / "text")
    rows = json.loads(X[:9].to_json(orient="records"))  # gaps are null
    with TestClient(create_app([place])) as client:
        answer = ask(client, "predict", {"rows": rows})
        np.testing.assert_allclose(answer["mean"], model.predict(X[:9]), atol=1e-12)
        wrong = [{**rows[0]}, {**rows[1], "mean_rent_eur_per_m2": "dear"}]
        refused = ask(client, "predict", {"rows": wrong}, 422)
        assert (refused["row"], refused["field"]) == (1, "mean_rent_eur_per_m2")
        assert ask(client, "predict", {"rows": [{**rows[0], "quarter": [1]}]}, 422)["field"] == "quarter"
        ask(client, "predict", {"rows": [{**rows[0], "quarter": "never seen"}]})


def test_a_log_ratio_model_answers_and_names_what_it_does_not_support(
    ratio_folder: Path, ratios: LogRatioLDL, rows: Any
) -> None:
    dist = ratios.predict_dist(pd.DataFrame(rows))
    with TestClient(create_app([ratio_folder])) as client:
        answer = ask(client, "predict", {"rows": rows, "levels": [0.9]})
        np.testing.assert_allclose(answer["mean"], dist.mean)
        np.testing.assert_allclose(answer["zero"], dist.prob_zero())
        np.testing.assert_allclose(np.array(answer["interval"])[:, :, 0], dist.quantiles([0.05, 0.95]))
        answer = ask(client, "condition", {"rows": rows, "known": {"business": 0.4}})
        assert np.max(answer["standard_error"]) > 0.0
        refused = ask(client, "update", {"rows": rows, "votes": [{"business": 1}] * 3}, 422)
        assert "does not support votes" in refused["error"]


def test_the_page_is_made_once_and_served_under_its_policy(folder: Path, city: Any, tmp_path: Path) -> None:
    file = tmp_path / "districts.csv"
    city[0][:7].to_csv(file, index=False)
    app = create_app([folder], data=file)
    with TestClient(app) as client:
        first = client.get("/")
        assert "script-src 'unsafe-inline'" in first.headers["content-security-policy"]
        assert "<title>districts" in first.text
        assert client.get("/").text == first.text
        assert client.get("/healthz").headers["content-security-policy"].startswith("default-src 'none'")
        city[0][:7].drop(columns="night_bus_lines").to_csv(file, index=False)
    with TestClient(create_app([folder], data=file)) as client:
        assert "night_bus_lines" in client.get("/").json()["error"]


@pytest.mark.parametrize("path", ["/", "/healthz", "/nothing", "/openapi.json"])
def test_replies_forbid_frames_and_sniffing(folder: Path, path: str) -> None:
    with TestClient(create_app([folder], token="secret")) as client:
        for headers in ({"authorization": "Bearer secret"}, {}):
            answer = client.get(path, headers=headers)
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
            assert len(answer.headers.get_list("content-security-policy")) == 1


# -- time and blocks of rows -------------------------------------------------------------------------------------------


class Held:
    """A model that answers once it is allowed to."""

    def __init__(self, model: Any) -> None:
        self.model, self.started, self.go_on = model, threading.Event(), threading.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def predict_dist(self, X: Any) -> Any:
        self.started.set()
        assert self.go_on.wait(20.0)
        return self.model.predict_dist(X)


def test_a_slow_model_delays_no_other_and_answers_what_it_accepted(
    tmp_path: Path, folder: Path, small: SnefyLDL, rows: Any
) -> None:
    app = create_app([folder, small.save(tmp_path / "slow")], limits=Limits(seconds=15.0))
    store = app.state.store
    held = Held(store.get("slow").model)
    store._models["slow"] = replace(store.get("slow"), model=held)
    with TestClient(app) as client, ThreadPoolExecutor(3) as pool:
        slow = [pool.submit(ask, client, "predict", {"rows": rows, "model": "slow"}) for _ in range(3)]
        assert held.started.wait(10.0)
        ask(client, "predict", {"rows": rows})
        assert not any(one.done() for one in slow)
        held.go_on.set()
        assert all(len(one.result()["mean"]) == 3 for one in slow)


def test_a_request_whose_time_is_up_gets_503(folder: Path, rows: Any) -> None:
    app = create_app([folder], limits=Limits(seconds=1e-9))
    with TestClient(app) as client:
        answer = client.post("/v1/predict", json={"rows": rows})
        assert answer.status_code == 503
        assert "the time for this request is up" in answer.json()["error"]
        assert answer.headers["retry-after"] == "1"
        with app.state.store.get().lock:
            assert "requests are waiting" in ask(client, "predict", {"rows": rows}, 503)["error"]


def test_blocks_of_rows_give_the_same_answers(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    served = load_served(folder, "city")
    rows = (np.linspace(0.8, 1.2, 9)[:, None] * np.full(5, 5.0)).tolist()
    question = Predict(rows=rows, levels=[0.8])
    whole = answer_question(served, question, Limits())
    monkeypatch.setattr(answers_module, "BLOCK_ROWS", 2)
    for name, values in answer_question(served, question, Limits()).items():
        if name != "calibrated":
            np.testing.assert_allclose(values, whole[name], atol=1e-6, err_msg=name)


# -- as a process ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGTERM")
def test_slow_clients_fill_the_limit_and_after_sigterm_it_exits_with_status_0(folder: Path) -> None:
    """Clients that never finish their request are a proxy's matter: here, others get 503 until these leave."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "snefy_ldl", "serve", str(folder), "--port", str(port), "--connections", "20"]

    def status() -> int:
        return httpx.get(f"http://127.0.0.1:{port}/healthz").status_code

    def wait_for(expected: int) -> None:
        until = time.monotonic() + 60.0
        while status() != expected:
            assert time.monotonic() < until
            time.sleep(0.05)

    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert any("Uvicorn running" in line for line in process.stderr)
        wait_for(200)
        slow = [socket.create_connection(("127.0.0.1", port)) for _ in range(30)]
        for one in slow:
            one.sendall(b"POST /v1/predict HTTP/1.1\r\nHost: x\r\n")
        wait_for(503)
        for one in slow:
            one.close()
        wait_for(200)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30.0) == 0
