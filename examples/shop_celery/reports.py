"""What the owner reads on Monday morning."""

from datetime import UTC, datetime, timedelta

from shop.database import Order, transaction
from sqlalchemy import func, select

from .app import app
from .mail import send_mail


@app.task
def weekly_report() -> int:
    with transaction() as session:
        last_week = Order.placed_at > datetime.now(UTC) - timedelta(weeks=1)
        orders = session.scalars(select(func.count()).select_from(Order).where(last_week)).one()
        send_mail.delay("owner@example.org", "Last week", f"{orders} orders")
    return orders
