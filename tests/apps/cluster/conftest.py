"""A Ray cluster of two workers for the tests of clusters; skipped with a reason if Ray is not installed."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

#: Two nodes with a processor each, as on two machines.
NODES = 2


@pytest.fixture(scope="session")
def cluster_address() -> Iterator[str]:
    """Address of a cluster of two nodes, started for these tests and stopped after them."""
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'snefy-ldl[ray]'")
    os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
    os.environ["RAY_TRAIN_HEALTH_CHECK_INTERVAL_S"] = "0.2"  # 2 s by default, for each short epoch as well
    from ray.cluster_utils import Cluster

    node = {"num_cpus": 1, "object_store_memory": 100 << 20, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=node)
    try:
        for _ in range(NODES - 1):
            cluster.add_node(**node)
        cluster.wait_for_nodes()
        yield cluster.address
    finally:
        cluster.shutdown()
