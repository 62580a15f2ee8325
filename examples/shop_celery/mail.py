"""Mail to customers and sellers."""

import os
import smtplib
from email.message import EmailMessage

from shop.database import Order, Product, transaction

from .app import app


@app.task(
    autoretry_for=(OSError,),
    dont_autoretry_for=(smtplib.SMTPRecipientsRefused,),
    retry_backoff=10,
    max_retries=5,
    time_limit=30,
)
def send_mail(to: str, subject: str, text: str) -> None:
    mail = EmailMessage()
    mail["To"], mail["From"], mail["Subject"] = to, "shop@example.org", subject
    mail.set_content(text)
    with smtplib.SMTP(os.environ["SMTP_HOST"], int(os.environ["SMTP_PORT"]), timeout=10) as server:
        server.send_message(mail)


@app.task
def confirm_order(order_id: int) -> None:
    with transaction() as session:
        order = session.get_one(Order, order_id)
        product = session.get_one(Product, order.product_id)
        text = f"Your {product.name} is on its way."
        send_mail.delay(order.customer, f"Order {order.id}", text)
