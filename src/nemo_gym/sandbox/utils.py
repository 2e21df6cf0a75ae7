"""Public path of `cpu_cap_env`; its name is what environments import."""

from __future__ import annotations

_CPU_COUNT_VARIABLES = (
    "OMP_NUM_THREADS",
    "OMP_THREAD_LIMIT",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "BLIS_NUM_THREADS",
    "PYTHON_CPU_COUNT",
    "NUMBA_NUM_THREADS",
    "LOKY_MAX_CPU_COUNT",
    "POLARS_MAX_THREADS",
    "PYTEST_XDIST_AUTO_NUM_WORKERS",
    "DJANGO_TEST_PROCESSES",
    "GOMAXPROCS",
    "CARGO_BUILD_JOBS",
    "RAYON_NUM_THREADS",
    "RUST_TEST_THREADS",
    "UV_THREADPOOL_SIZE",
    "CMAKE_BUILD_PARALLEL_LEVEL",
)


def cpu_cap_env(cpu: float | None) -> dict[str, str]:
    """Return variables that keep tools from starting a thread per core of the host; {} when `cpu` is None.

    A fraction is rounded down, and is at least 1.
    """
    if cpu is None:
        return {}
    count = str(max(1, int(cpu)))
    return dict.fromkeys(_CPU_COUNT_VARIABLES, count)
