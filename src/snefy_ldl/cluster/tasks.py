"""Many small pieces of work on a Ray cluster: whatever runs through joblib, and the repeats of a reproduction."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

from joblib import parallel_config
from joblib.parallel import ParallelBackendBase
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]  # scikit-learn brings it

from snefy_ldl.cluster.cluster import connected, share_out

__all__ = ["RayJobs", "RayTasks", "ray_jobs"]


def call_alone(work: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function on one thread, as one worker among many.

    Args:
        work: the function.
        arguments: of it.

    Returns:
        What it returns.

    Example:
        >>> call_alone(max, 1, 2)
        2
    """
    import torch  # loaded where it is used: a command that only asks for help should answer at once

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(1):
            return work(*arguments)
    finally:
        torch.set_num_threads(before)


class RayJobs(ParallelBackendBase):  # type: ignore[misc]
    """A backend of joblib whose jobs are tasks of Ray.

    Ray's own backend is one of processes: it cannot hand results on as they come, which ``compare`` needs to keep what
    is finished, and it changes joblib's classes for the rest of the process.

    Args:
        ray: the module, connected.
        cpus: that a job takes.
        gpus: that a job takes; several may share one.
        settings: of joblib.
    """

    supports_retrieve_callback = True
    supports_return_generator = True
    default_n_jobs = -1

    def __init__(self, ray: Any, cpus: float, gpus: float = 0.0, **settings: Any) -> None:
        super().__init__(**settings)
        self._ray = ray
        self._remote = ray.remote(num_cpus=cpus, num_gpus=gpus, max_retries=-1)(call_alone)

    def effective_n_jobs(self, n_jobs: int | None) -> int:
        """How many jobs run at one time.

        Args:
            n_jobs: as joblib has it; negative numbers count from the cluster's processors down.

        Returns:
            The number.
        """
        total = max(1, int(self._ray.cluster_resources().get("CPU", 1.0)))
        if n_jobs is None:
            return 1
        return max(1, total + 1 + n_jobs) if n_jobs < 0 else n_jobs

    def configure(self, n_jobs: int = 1, parallel: Any = None, **settings: Any) -> int:
        """Get ready for some jobs.

        Args:
            n_jobs: at one time.
            parallel: joblib's object that runs them.
            settings: of joblib.

        Returns:
            How many will run at one time.
        """
        self.parallel = parallel
        return self.effective_n_jobs(n_jobs)

    def submit(self, func: Callable[[], Any], callback: Callable[[Any], None] | None = None) -> Future[Any]:
        """Start a job.

        Args:
            func: the job.
            callback: told when it is done.

        Returns:
            What will hold its result.
        """
        future: Future[Any] = self._remote.remote(func).future()
        if callback is not None:
            future.add_done_callback(callback)
        return future

    def retrieve_result_callback(self, out: Future[Any]) -> Any:
        """The result of a job that is done.

        Args:
            out: what :meth:`submit` returned.

        Returns:
            The result.
        """
        try:
            return out.result()
        except self._ray.exceptions.RayTaskError as error:
            raise getattr(error, "cause", error) from None

    def abort_everything(self, ensure_ready: bool = True) -> None:
        """Nothing to do: tasks nobody waits for end with the connection.

        Args:
            ensure_ready: for joblib.
        """


@contextmanager
def ray_jobs(address: str | None = None, workers: int | None = None) -> Iterator[None]:
    """Send whatever runs through joblib to a Ray cluster: ``tune``, ``compare``, ``fit_many``, bagging.

    Each of them takes ``n_jobs``: as many jobs as the cluster should do at one time.

    Args:
        address: of a cluster; None starts one on this machine for the time of the block.
        workers: that share the cluster; by default one a processor.

    Yields:
        Nothing.

    Example:
        >>> with ray_jobs("auto"):  # doctest: +SKIP
        ...     tune(SnefyLDL(), X, D, {"n_neurons": [16, 64]}, n_jobs=16)
    """
    with connected(address, workers) as ray:
        shares = share_out(ray.cluster_resources(), workers)
        with parallel_config(backend=RayJobs(ray, shares.cpus, shares.gpus)):
            yield


class RayTasks:
    """Runs the tasks of a reproduction on a Ray cluster; data sets travel there with them.

    Args:
        address: of a cluster; None starts one on this machine for the time of the work.
        workers: that share the cluster; by default one a processor.

    Example:
        >>> RayTasks(address="auto", workers=8).workers
        8
    """

    def __init__(self, address: str | None = None, workers: int | None = None) -> None:
        self.address, self.workers = address, workers

    def __call__(
        self, work: Callable[[Any, Any], Any], tasks: Sequence[Any], data: Callable[[Any], Any]
    ) -> Iterator[tuple[Any, Any]]:
        """Work on tasks.

        Args:
            work: from a task and its data set to an answer; importable.
            tasks: what to do.
            data: from a task to its data set; called here.

        Yields:
            Each task with its answer, as it is done.
        """
        with connected(self.address, self.workers) as ray:
            shares = share_out(ray.cluster_resources(), self.workers, len(tasks))
            remote = ray.remote(num_cpus=shares.cpus, num_gpus=shares.gpus, max_retries=-1)(call_alone)
            sets: dict[int, Any] = {}
            waiting = {}
            for task in tasks:
                rows = data(task)
                if id(rows) not in sets:
                    sets[id(rows)] = (rows, ray.put(rows))
                waiting[remote.remote(work, task, sets[id(rows)][1])] = task
            while waiting:
                (done,), _ = ray.wait(list(waiting), num_returns=1)
                try:
                    answer = ray.get(done)
                except ray.exceptions.RayTaskError as error:
                    raise getattr(error, "cause", error) from None
                yield waiting.pop(done), answer
