"""The source of an example app: a shop with queues, schedules and a workflow."""

SOURCE = """
app = Horsies(AppConfig(
    queue_mode=QueueMode.CUSTOM,
    custom_queues=[
        CustomQueueConfig(name="orders", priority=1), CustomQueueConfig(name="mail", priority=2, max_concurrency=5),
        CustomQueueConfig(name="reports", priority=3),
    ],
    schedule=ScheduleConfig(schedules=[
        TaskSchedule(name="nightly-report", task_name="render_report", kwargs={"pages": 3}, timezone="Europe/Berlin",
                     pattern=CronSchedule("30 2 * * *")),
        TaskSchedule(name="stock-check", task_name="check_stock", pattern=IntervalSchedule(minutes=15)),
    ]),
))


@app.task("charge_card", queue_name="orders")
def charge_card(order: int, amount: str) -> TaskResult[str, TaskError]:
    time.sleep(0.02)
    return TaskResult(ok=f"receipt-{order}")


@app.task("send_mail", queue_name="mail",
          retry_policy=RetryPolicy.fixed([1], auto_retry_for=["UNHANDLED_EXCEPTION"]))
def send_mail(to: str, subject: str) -> TaskResult[None, TaskError]:
    if to.endswith(".invalid"):
        raise ConnectionRefusedError(f"the mail server of {to} does not answer")
    return TaskResult(ok=None)


@app.task("check_stock", queue_name="orders")
def check_stock() -> TaskResult[int, TaskError]:
    return TaskResult(ok=42)


@app.task("render_report", queue_name="reports")
def render_report(pages: int) -> TaskResult[int, TaskError]:
    me = current_task()
    for page in range(pages):
        me.report_progress(page, pages, f"page {page + 1}")
        me.log.info("page %d of %d is drawn", page + 1, pages)
        for _ in range(20):
            if me.cancelled():
                return TaskResult(ok=page)
            time.sleep(0.01)
    return TaskResult(ok=pages)


@app.task("collect", queue_name="reports")
def collect(region: str) -> TaskResult[int, TaskError]:
    time.sleep(0.05 * len(region))
    return TaskResult(ok=len(region))


@app.task("total", queue_name="reports")
def total(a: TaskResult[int, TaskError], b: TaskResult[int, TaskError], c: TaskResult[int, TaskError]) -> TaskResult[int, TaskError]:
    return TaskResult(ok=a.unwrap() + b.unwrap() + c.unwrap())


@app.task("publish", queue_name="mail")
def publish(sum: TaskResult[int, TaskError]) -> TaskResult[str, TaskError]:
    if not Path("printer").exists():
        return TaskResult(err=TaskError(error_code="NO_PRINTER", message="there is no printer"))
    return TaskResult(ok="published")


@app.task("publish_alone", queue_name="orders")
def publish_alone(copies: int = 1) -> TaskResult[str, TaskError]:
    if not Path("printer").exists():
        raise FileNotFoundError("there is no printer")
    return TaskResult(ok=f"{copies} published")


@app.task("archive", queue_name="reports")
def archive(sum: TaskResult[int, TaskError]) -> TaskResult[str, TaskError]:
    time.sleep(0.3)
    return TaskResult(ok="archived")


def month_end():
    north, south, west = (collect.node(node_id=each)(region=each) for each in ("north", "south", "west"))
    summed = total.node(node_id="total")(a=from_node(north), b=from_node(south), c=from_node(west))
    kept = archive.node(node_id="archive")(sum=from_node(summed))
    out = publish.node(node_id="publish")(sum=from_node(summed))
    return app.workflow("month end", [north, south, west, summed, kept, out], output=out,
                        definition_key="shop.month_end.v1")
"""
