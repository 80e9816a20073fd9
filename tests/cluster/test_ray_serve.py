"""The service on Ray Serve answers as it does in one process, from two replicas."""

from __future__ import annotations

import json
import urllib.error
import urllib.request

import numpy as np
import pandas as pd
import pytest

from engine_cases import CITY, FEATURES, fill_folder
from snefy_ldl import SnefyLDL
from snefy_ldl.cluster.cluster import connected

pytestmark = [pytest.mark.ray, pytest.mark.filterwarnings("default")]

PORT = 18_765


def ask(path, content=None, token="secret"):
    body = None if content is None else json.dumps(content).encode()
    head = {"Content-Type": "application/json", "Authorization": f"Bearer {token}"}
    request = urllib.request.Request(f"http://127.0.0.1:{PORT}{path}", body, head)
    with urllib.request.urlopen(request, timeout=30) as reply:
        return json.loads(reply.read())


def test_replicas_answer_with_the_models_numbers(cluster_address, tmp_path):
    pytest.importorskip("ray.serve", reason="Ray Serve is not installed: pip install 'ray[serve]'")
    from ray import serve

    from snefy_ldl.serve.replicas import make_replicas

    folder = fill_folder(tmp_path)
    rows = [dict(zip(FEATURES, row.tolist())) for row in CITY.X[:5]]
    with connected(cluster_address):
        application = make_replicas([folder / "model"], token="secret", replicas=2, cpus=0.3)
        serve.start(http_options={"host": "127.0.0.1", "port": PORT})
        try:
            serve.run(application, name="tests")
            status = serve.status().applications["tests"].deployments["snefy-ldl"]
            assert sum(status.replica_states.values()) == 2
            expected = SnefyLDL.load(folder / "model").predict(pd.DataFrame(rows))
            for _ in range(6):  # whichever replica answers
                np.testing.assert_allclose(ask("/v1/predict", {"rows": rows})["mean"], expected, atol=1e-6)
            with pytest.raises(urllib.error.HTTPError, match="401"):
                ask("/v1/models", token="wrong")
        finally:
            serve.shutdown()
