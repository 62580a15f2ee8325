"""Thumbnails of a product's pictures: one task per picture, and one when all are there."""

from pathlib import Path

from horsies import WorkflowSpec, from_node, map_node

from .app import app
from .database import Product, transaction
from .mail import send_mail
from .pictures import folder_of, halve


@app.task
def pictures_of(product_id: int) -> list[str]:
    return sorted(map(str, folder_of(product_id).glob("*.ppm")))


@app.task(idempotent=True, timeout=60)
def shrink(picture: str) -> str:
    thumbnail = Path(picture).with_suffix(".small")
    thumbnail.write_bytes(halve(Path(picture).read_bytes()))
    return str(thumbnail)


@app.task
def publish(product_id: int, thumbnails: list[str]) -> None:
    with transaction() as session:
        product = session.get_one(Product, product_id)
        product.thumbnails = thumbnails
        text = f"It has {len(thumbnails)} pictures."
        send_mail.with_options(conn=session).delay(product.seller, f"{product.name} is online", text)


@app.workflow_builder(cases=[{"product_id": 1}])
def make_thumbnails(product_id: int) -> WorkflowSpec[None]:
    pictures = pictures_of.node(product_id)
    small = map_node(shrink, over=pictures)
    done = publish.node(product_id, from_node(small))
    return app.workflow("thumbnails", [pictures, small, done], output=done, definition_key="shop.thumbnails")
