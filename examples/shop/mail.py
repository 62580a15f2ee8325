"""Mail to customers and sellers."""

import os
import smtplib
from email.message import EmailMessage

from horsies import RetryPolicy, TaskFailure

from .app import app
from .database import Order, Product, transaction


@app.task(
    queue="mail", retry_on=(OSError,), retry_policy=RetryPolicy.exponential(10, max_retries=5), timeout=30
)
def send_mail(to: str, subject: str, text: str) -> None:
    mail = EmailMessage()
    mail["To"], mail["From"], mail["Subject"] = to, "shop@example.org", subject
    mail.set_content(text)
    try:
        with smtplib.SMTP(os.environ["SMTP_HOST"], int(os.environ["SMTP_PORT"]), timeout=10) as server:
            server.send_message(mail)
    except smtplib.SMTPRecipientsRefused as refused:
        raise TaskFailure("ADDRESS_REFUSED", f"the mail server refuses {to}") from refused


@app.task
def confirm_order(order_id: int) -> None:
    with transaction() as session:
        order = session.get_one(Order, order_id)
        product = session.get_one(Product, order.product_id)
        text = f"Your {product.name} is on its way."
        send_mail.with_options(conn=session).delay(order.customer, f"Order {order.id}", text)
