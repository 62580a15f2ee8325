"""Process an order: a typed workflow with a join, a fallback, an approval by a person and a sub-workflow.

$ horsies worker examples/orders.py:app
$ python examples/orders.py
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

from horsies import (
    Horsies,
    SubWorkflowNode,
    SuccessCase,
    SuccessPolicy,
    TaskError,
    TaskResult,
    WorkflowContext,
    WorkflowDefinition,
    WorkflowSpec,
    from_node,
    map_node,
    signal_node,
)

app = Horsies()


@dataclass(frozen=True)
class Line:
    article: str
    price: Decimal


@dataclass(frozen=True)
class Parcel:
    articles: list[str]
    carrier: str


@app.task("orders.lines")
def lines_of(order: int) -> TaskResult[list[Line], TaskError]:
    """Return the lines of an order; a real task would read them from the shop's database."""
    return TaskResult(ok=[Line(f"book {order}", Decimal("12.50")), Line(f"pen {order}", Decimal("2.25"))])


@app.task("orders.reserve")
def reserve(line: Line) -> TaskResult[str, TaskError]:
    return TaskResult(ok=line.article)


@app.task("orders.total")
def total(lines: TaskResult[list[Line], TaskError]) -> TaskResult[Decimal, TaskError]:
    return TaskResult(ok=sum((line.price for line in lines.unwrap()), Decimal(0)))


@app.task("orders.charge")
def charge(amount: TaskResult[Decimal, TaskError], card: str) -> TaskResult[str, TaskError]:
    if not card.startswith("4"):
        return TaskResult(err=TaskError(error_code="CARD_DECLINED", message="the bank declined the card"))
    return TaskResult(ok=f"charged {amount.unwrap()}")


@app.task("orders.invoice")
def invoice(amount: TaskResult[Decimal, TaskError]) -> TaskResult[str, TaskError]:
    return TaskResult(ok=f"invoice over {amount.unwrap()}")


@app.task("orders.pack")
def pack(articles: TaskResult[list[str], TaskError]) -> TaskResult[Parcel, TaskError]:
    return TaskResult(ok=Parcel(articles.unwrap(), "post"))


@app.task("orders.report")
def report(workflow_ctx: WorkflowContext | None = None) -> TaskResult[str, TaskError]:
    assert workflow_ctx is not None, "this task is a node of a workflow"
    parcel = workflow_ctx.result_for(Delivery.packed)
    return TaskResult(ok=f"{len(parcel.unwrap().articles)} articles by {parcel.unwrap().carrier}")


class Delivery(WorkflowDefinition[str]):
    """Reserve the articles, pack them and report the parcel."""

    name = "delivery"
    definition_key = "examples.delivery.v1"

    lines = lines_of.node()(order=1)
    reserved = map_node(reserve, over=lines)
    packed = pack.node()(articles=from_node(reserved))
    reported = report.node(waits_for=[packed], workflow_ctx_from=[packed])()

    class Meta:
        output = "reported"


@app.workflow_builder(cases=[{"order": 1, "card": "4242"}])
def order_workflow(order: int, card: str) -> WorkflowSpec[str]:
    """Charge the card, or send an invoice if that fails; ship after the approval."""
    lines = lines_of.node(node_id="lines")(order=order)
    amount = total.node(node_id="amount")(lines=from_node(lines))
    paid = charge.node(node_id="paid")(amount=from_node(amount), card=card)
    billed = invoice.node(node_id="billed", waits_for=[paid], allow_failed_deps=True)(
        amount=from_node(amount)
    )
    approved = signal_node("approved", timeout_seconds=3_600, waits_for=[billed], node_id="approved")
    delivery = SubWorkflowNode(Delivery, waits_for=[approved], node_id="delivery")
    return app.workflow(
        "order",
        [lines, amount, paid, billed, approved, delivery],
        output=delivery,
        success_policy=SuccessPolicy(cases=[SuccessCase(required=[delivery])], optional=[paid]),
        deadline_seconds=86_400,
        definition_key="examples.order.v1",
    )


def main() -> None:
    handle = order_workflow(order=7, card="3000").start().unwrap()
    handle.signal("approved", {"by": "ann"}).unwrap()
    print(handle.get(timeout_ms=30_000).unwrap())
    for node in handle.tasks().unwrap():
        print(f"{node.node_id:10} {node.status}")


if __name__ == "__main__":
    main()
