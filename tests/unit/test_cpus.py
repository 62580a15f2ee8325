"""A worker has as many processes as it may use CPUs: by affinity, and by the control groups of a container."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from horsies.config import WorkerConfig
from horsies.cpus import cgroup_cpu_limit, cpu_affinity, usable_cpus

V2 = "30 23 0:26 {inside} /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"
V1 = "33 31 0:29 {inside} /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
DISK = "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n"


def machine(root: Path, groups: str, mounts: str, limits: Mapping[str, str]) -> Path:
    """Write the files of a machine as a process sees them."""
    files = {"proc/self/cgroup": groups, "proc/self/mountinfo": DISK + mounts, **limits}
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_a_container_of_version_2_is_limited_by_its_quota(tmp_path: Path) -> None:
    root = machine(tmp_path, "0::/\n", V2.format(inside="/"), {"sys/fs/cgroup/cpu.max": "150000 100000\n"})

    assert cgroup_cpu_limit(root) == 1.5
    assert usable_cpus(8, root) == 2  # one and a half, rounded up
    assert usable_cpus(1, root) == 1  # the affinity is narrower


def test_the_narrowest_group_on_the_way_up_counts(tmp_path: Path) -> None:
    root = machine(
        tmp_path,
        "0::/system.slice/shop.service/worker\n",
        V2.format(inside="/"),
        {
            "sys/fs/cgroup/system.slice/cpu.max": "600000 100000",
            "sys/fs/cgroup/system.slice/shop.service/cpu.max": "300000 100000",
            "sys/fs/cgroup/system.slice/shop.service/worker/cpu.max": "max 100000",
            "sys/fs/cgroup/other/cpu.max": "100000 100000",
        },
    )

    assert usable_cpus(8, root) == 3


def test_a_container_of_version_1_is_limited_by_its_quota(tmp_path: Path) -> None:
    folder = "sys/fs/cgroup/cpu,cpuacct"
    root = machine(
        tmp_path,
        "9:memory:/docker/4f\n4:cpu,cpuacct:/docker/4f\n0::/docker/4f\n",
        V1.format(inside="/docker/4f"),  # only this part of the tree is mounted in the container
        {f"{folder}/cpu.cfs_quota_us": "250000\n", f"{folder}/cpu.cfs_period_us": "100000\n"},
    )

    assert cgroup_cpu_limit(root) == 2.5
    assert usable_cpus(8, root) == 3


def test_a_group_of_version_1_below_the_mounted_one_is_found(tmp_path: Path) -> None:
    folder = "sys/fs/cgroup/cpu,cpuacct/kubepods/pod7"
    root = machine(
        tmp_path,
        "4:cpu,cpuacct:/kubepods/pod7\n",
        V1.format(inside="/"),
        {f"{folder}/cpu.cfs_quota_us": "400000", f"{folder}/cpu.cfs_period_us": "100000"},
    )

    assert usable_cpus(8, root) == 4


def test_a_group_outside_the_mounted_part_is_read_where_the_mount_begins(tmp_path: Path) -> None:
    root = machine(
        tmp_path, "0::/../../other\n", V2.format(inside="/a"), {"sys/fs/cgroup/cpu.max": "200000 100000"}
    )

    assert usable_cpus(8, root) == 2


def test_a_mount_point_may_have_a_space(tmp_path: Path) -> None:
    mounts = V2.format(inside="/").replace("/sys/fs/cgroup", r"/sys/fs/control\040groups")
    root = machine(tmp_path, "0::/\n", mounts, {"sys/fs/control groups/cpu.max": "100000 100000"})

    assert usable_cpus(8, root) == 1


def test_a_tenth_of_a_cpu_is_one_process(tmp_path: Path) -> None:
    root = machine(tmp_path, "0::/\n", V2.format(inside="/"), {"sys/fs/cgroup/cpu.max": "10000 100000"})

    assert usable_cpus(8, root) == 1


@pytest.mark.parametrize("text", ["max 100000", "", "nonsense", "0 100000", "100000 0", "-1 100000", "1 2 3"])
def test_what_is_no_limit_or_cannot_be_read_limits_nothing(tmp_path: Path, text: str) -> None:
    v1 = {"cpu.cfs_quota_us": "-1\n", "cpu.cfs_period_us": "100000\n"}
    root = machine(
        tmp_path,
        "4:cpu,cpuacct:/\n0::/\n",
        V2.format(inside="/") + V1.format(inside="/") + "garbage\n- -\n",
        {
            "sys/fs/cgroup/cpu.max": text,
            **{f"sys/fs/cgroup/cpu,cpuacct/{name}": value for name, value in v1.items()},
        },
    )

    assert cgroup_cpu_limit(root) is None
    assert usable_cpus(8, root) == 8


def test_a_system_without_control_groups_has_no_limit(tmp_path: Path) -> None:
    assert cgroup_cpu_limit(tmp_path) is None
    assert usable_cpus(3, tmp_path) == 3


def test_the_default_of_a_worker_is_what_this_process_may_use() -> None:
    assert WorkerConfig().processes == usable_cpus() <= (os.cpu_count() or 1)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system has no CPU affinity")
def test_a_worker_bound_to_one_cpu_has_one_process() -> None:
    script = (
        "import os; os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])\n"
        "from horsies import WorkerConfig; print(WorkerConfig().processes)"
    )

    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True).stdout == "1\n"
    assert cpu_affinity() >= 1
