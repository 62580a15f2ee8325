"""The figures in the README and in docs/performance.md are those of the runs that `bench/runs` keeps, and of no others."""

from __future__ import annotations

from bench.page import PAGE, README, comparison, kept_runs, performance, split


def test_the_tables_of_the_readme_are_those_of_the_kept_runs() -> None:
    assert split(README)[1] == comparison(kept_runs()).strip("\n")


def test_the_tables_of_the_performance_page_are_those_of_the_kept_runs() -> None:
    assert split(PAGE)[1] == performance(kept_runs()).strip("\n")
