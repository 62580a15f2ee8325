"""What the owner reads on Monday morning."""

from datetime import UTC, datetime, timedelta

from sqlalchemy import func, select

from .app import app
from .database import Order, transaction
from .mail import send_mail


@app.schedule("0 8 * * mon", timezone="Europe/Berlin")
@app.task
def weekly_report() -> int:
    with transaction() as session:
        last_week = Order.placed_at > datetime.now(UTC) - timedelta(weeks=1)
        orders = session.scalars(select(func.count()).select_from(Order).where(last_week)).one()
        send_mail.with_options(conn=session).delay("owner@example.org", "Last week", f"{orders} orders")
    return orders
