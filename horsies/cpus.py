"""Count the CPUs that this process may use: the default number of a worker's processes.

A container usually sees all CPUs of its machine. What it may use is in its CPU affinity (`docker run --cpuset-cpus`, `taskset`)
and in the limits of its control group (`docker run --cpus`, `limits.cpu` of Kubernetes, `CPUQuota` of systemd).
"""

from __future__ import annotations

import math
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

_ROOT = Path("/")


def usable_cpus(affinity: int | None = None, root: Path = _ROOT) -> int:
    """Return how many CPUs this process may use, at least 1; half a CPU counts as one.

    `affinity` is the number of CPUs that the process may run on. `root` is the folder that holds `proc` and `sys`.

    >>> usable_cpus(affinity=8, root=Path("/nowhere"))
    8
    """
    count = cpu_affinity() if affinity is None else affinity
    limit = cgroup_cpu_limit(root)
    return max(1, count if limit is None else min(count, math.ceil(limit)))


def cpu_affinity() -> int:
    """Return the number of CPUs that this process may run on. From Python 3.13 on, PYTHON_CPU_COUNT replaces it."""
    if sys.version_info >= (3, 13):
        return os.process_cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cgroup_cpu_limit(root: Path = _ROOT) -> float | None:
    """Return the CPUs that the control groups of this process allow, of version 1 or 2; None if there is no limit.

    Each group is limited by itself and by all groups above it.
    """
    quotas = [quota for group in _cpu_groups(root) for quota in _quotas(group)]
    return min(quotas, default=None)


def _cpu_groups(root: Path) -> Iterator[Path]:
    """Yield the folders of the control groups of this process and of all groups above them, as far as they are visible."""
    groups = dict(_groups(_read(root / "proc/self/cgroup")))
    for version, inside, mounted_at in _mounts(_read(root / "proc/self/mountinfo")):
        if version not in groups:
            continue
        path = groups[version]
        # In a container, only the part of the tree from `inside` on may be mounted.
        relative = path.relative_to(inside) if path.is_relative_to(inside) else PurePosixPath()
        top = root / mounted_at.lstrip("/")
        for part in (relative, *relative.parents):
            yield top / part


def _groups(text: str) -> Iterator[tuple[int, PurePosixPath]]:
    """Yield version and path of the groups that may limit the CPU, from lines such as `4:cpu,cpuacct:/a` and `0::/a`."""
    for line in text.splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            yield 2, PurePosixPath(path)
        elif "cpu" in controllers.split(","):
            yield 1, PurePosixPath(path)


def _mounts(text: str) -> Iterator[tuple[int, PurePosixPath, str]]:
    """Yield version, mounted part and mount point of each tree of control groups that may limit the CPU."""
    for line in text.splitlines():
        before, _, after = line.partition(" - ")
        mount, system = before.split(), after.split()
        if len(mount) < 5 or len(system) < 3:
            continue
        inside, mounted_at = (_unescaped(field) for field in mount[3:5])
        if system[0] == "cgroup2":
            yield 2, PurePosixPath(inside), mounted_at
        elif system[0] == "cgroup" and "cpu" in system[2].split(","):
            yield 1, PurePosixPath(inside), mounted_at


def _unescaped(field: str) -> str:
    r"""Return a field of `mountinfo`, which writes a space as `\040`."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), field)


def _quotas(group: Path) -> Iterator[float]:
    """Yield the limit of one group in CPUs, if it has one: `cpu.max` in version 2, two files in version 1."""
    version_2 = _read(group / "cpu.max").split()
    version_1 = [_read(group / f"cpu.cfs_{name}_us").strip() for name in ("quota", "period")]
    for quota, period in (fields for fields in (version_2, version_1) if len(fields) == 2):
        if quota.isdecimal() and period.isdecimal() and int(quota) > 0 and int(period) > 0:
            yield int(quota) / int(period)  # no limit is written as `max` or -1


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
