"""The web application. A request stores what it changes and what it sends in one transaction."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Annotated

from fastapi import Depends, FastAPI, HTTPException, Request
from pydantic import Base64Bytes, BaseModel
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from horsies.integrations.fastapi import lifespan

from .app import app
from .database import Base, Order, Product, url
from .mail import confirm_order
from .pictures import folder_of
from .thumbnails import make_thumbnails


@asynccontextmanager
async def database(web: FastAPI) -> AsyncGenerator[None]:
    """Open the engine when the web application starts, and create the tables."""
    web.state.engine = create_async_engine(url())
    async with web.state.engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    yield
    await web.state.engine.dispose()


async def session_of(request: Request) -> AsyncGenerator[AsyncSession]:
    async with AsyncSession(request.app.state.engine) as session, session.begin():
        yield session


Session = Annotated[AsyncSession, Depends(session_of, scope="function")]
web = FastAPI(lifespan=lifespan(app, database))


class NewProduct(BaseModel):
    name: str
    seller: str
    stock: int
    pictures: list[Base64Bytes]


@web.post("/products", status_code=201)
async def add_product(new: NewProduct, session: Session) -> int:
    product = Product(name=new.name, seller=new.seller, stock=new.stock)
    session.add(product)
    await session.flush()
    for number, picture in enumerate(new.pictures, 1):
        (folder_of(product.id) / f"{number}.ppm").write_bytes(picture)
    await make_thumbnails(product.id).start_async(conn=session)
    return product.id


@web.post("/products/{product_id}/orders", status_code=201)
async def place_order(product_id: int, customer: str, session: Session) -> int:
    order = Order(product_id=product_id, customer=customer)
    session.add(order)
    await session.flush()
    await confirm_order.with_options(conn=session).delay_async(order.id)
    product = await session.get_one(Product, product_id, with_for_update=True)
    product.stock -= 1
    if product.stock < 0:
        raise HTTPException(409, "sold out")  # the transaction is rolled back, and the task with it
    return order.id
