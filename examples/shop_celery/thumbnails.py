"""Thumbnails of a product's pictures: one task per picture, and one when all are there."""

from pathlib import Path

from celery import chord
from shop.database import Product, transaction
from shop.pictures import folder_of, halve

from .app import app
from .mail import send_mail


@app.task(acks_late=True, reject_on_worker_lost=True, time_limit=60)
def shrink(picture: str) -> str:
    thumbnail = Path(picture).with_suffix(".small")
    thumbnail.write_bytes(halve(Path(picture).read_bytes()))
    return str(thumbnail)


@app.task
def publish(thumbnails: list[str], product_id: int) -> None:
    with transaction() as session:
        product = session.get_one(Product, product_id)
        product.thumbnails = thumbnails
        text = f"It has {len(thumbnails)} pictures."
        send_mail.delay(product.seller, f"{product.name} is online", text)


@app.task(bind=True)
def make_thumbnails(self, product_id: int) -> None:
    pictures = sorted(map(str, folder_of(product_id).glob("*.ppm")))
    self.replace(chord((shrink.s(picture) for picture in pictures), publish.s(product_id)))
