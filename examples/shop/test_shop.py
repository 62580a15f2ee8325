"""The shop's own tests: run them with `pytest examples/shop`."""

from base64 import b64encode
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from horsies import TaskFailed
from horsies.testing import drain, enqueued, travel

from .app import app
from .conftest import MailServer
from .database import Product, transaction
from .mail import send_mail

PICTURE = b"P6 4 2 255\n" + bytes(range(24))


def add_product(client: TestClient, *, stock: int = 1, pictures: int = 0) -> int:
    body = {"name": "lamp", "seller": "sue@example.org", "stock": stock}
    pictures_as_text = [b64encode(PICTURE).decode()] * pictures
    return client.post("/products", json=body | {"pictures": pictures_as_text}).raise_for_status().json()


def test_an_order_is_confirmed_by_mail(client: TestClient, mail_server: MailServer) -> None:
    product = add_product(client)
    drain(app)

    order = client.post(f"/products/{product}/orders?customer=ann@example.org").json()
    drain(app)

    assert mail_server.subjects() == [f"Order {order}", "lamp is online"]


@pytest.mark.usefixtures("mail_server")
def test_an_order_that_is_rolled_back_sends_nothing(client: TestClient) -> None:
    product = add_product(client, stock=0)
    drain(app)

    answer = client.post(f"/products/{product}/orders?customer=ann@example.org")

    assert (answer.status_code, enqueued(app)) == (409, [])


@pytest.mark.usefixtures("client")
def test_a_mail_waits_until_the_mail_server_is_back(smtp_port: int) -> None:
    handle = send_mail.delay("ann@example.org", "Hello", "…")

    [refused] = drain(app)
    assert "ConnectionRefusedError" in str(refused.result.unwrap_err().message)
    with MailServer(smtp_port) as server:
        travel(app, minutes=1)
        drain(app)
        server.shutdown()

    assert (handle.result(timeout=0), server.subjects()) == (None, ["Hello"])


@pytest.mark.usefixtures("client", "mail_server")
def test_a_refused_address_is_not_tried_again() -> None:
    handle = send_mail.delay("nobody@example.org", "Hello", "…")

    assert len(drain(app, retry_now=True)) == 1
    with pytest.raises(TaskFailed) as failed:
        handle.result(timeout=0)
    assert failed.value.error.error_code == "ADDRESS_REFUSED"


def test_a_product_is_online_when_all_thumbnails_are_made(
    client: TestClient, mail_server: MailServer
) -> None:
    product = add_product(client, pictures=3)

    drain(app)

    with transaction() as session:
        thumbnails = session.get_one(Product, product).thumbnails
    assert [Path(each).name for each in thumbnails] == ["1.small", "2.small", "3.small"]
    assert Path(thumbnails[0]).read_bytes() == b"P6 2 1 255\n" + PICTURE[11:14] + PICTURE[17:20]
    assert "It has 3 pictures." in mail_server.mails[0]


@pytest.mark.usefixtures("client")
def test_the_report_comes_every_monday(mail_server: MailServer) -> None:
    travel(app, days=7)
    drain(app)

    assert mail_server.subjects() == ["Last week"]
