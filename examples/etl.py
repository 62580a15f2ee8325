"""Extract, transform, load: read a list, run a task for each of its items, and combine the results.

$ python examples/etl.py
"""

from __future__ import annotations

from dataclasses import dataclass

from running import worker

from horsies import Horsies, RetryPolicy, TaskError, TaskResult, WorkflowSpec, from_node, map_node

app = Horsies()


@dataclass(frozen=True)
class Sale:
    """A parsed line."""

    shop: str
    cents: int


@app.task("etl.extract")
def extract(day: str) -> TaskResult[list[str], TaskError]:
    """Return the lines of a day's file; a real task would download it."""
    return TaskResult(ok=[f"{day};shop {number % 3};{number * 125}" for number in range(1, 13)])


@app.task("etl.transform", retry_policy=RetryPolicy.fixed([1], auto_retry_for=["TASK_EXCEPTION"]))
def transform(line: str) -> TaskResult[Sale, TaskError]:
    """Parse one line; the worker runs these tasks in parallel."""
    _day, shop, cents = line.split(";")
    return TaskResult(ok=Sale(shop, int(cents)))


@app.task("etl.load")
def load(sales: TaskResult[list[Sale], TaskError]) -> TaskResult[dict[str, int], TaskError]:
    """Add up the sales; this runs after every line was parsed."""
    totals: dict[str, int] = {}
    for sale in sales.unwrap():
        totals[sale.shop] = totals.get(sale.shop, 0) + sale.cents
    return TaskResult(ok=totals)


@app.workflow_builder(cases=[{"day": "2026-11-16"}])
def import_day(day: str) -> WorkflowSpec[dict[str, int]]:
    lines = extract.node(node_id="lines")(day=day)
    sales = map_node(transform, over=lines, node_id="sales")
    totals = load.node(node_id="totals")(sales=from_node(sales))
    return app.workflow(
        "import a day", [lines, sales, totals], output=totals, definition_key="examples.etl.v1"
    )


def main() -> None:
    with worker(__file__):
        totals = import_day("2026-11-16").start().unwrap().get(timeout_ms=60_000).unwrap()
    for shop, cents in sorted(totals.items()):
        print(f"{shop}: {cents / 100:.2f}")


if __name__ == "__main__":
    main()
