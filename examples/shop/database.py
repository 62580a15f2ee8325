"""The shop's tables, in the database that also holds the tasks."""

import os
from collections.abc import Generator
from contextlib import contextmanager
from datetime import datetime

from sqlalchemy import ARRAY, DateTime, ForeignKey, NullPool, Text, create_engine, func
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column


class Base(DeclarativeBase):
    pass


class Product(Base):
    __tablename__ = "products"

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str]
    seller: Mapped[str]
    stock: Mapped[int]
    thumbnails: Mapped[list[str]] = mapped_column(ARRAY(Text), default=list)


class Order(Base):
    __tablename__ = "orders"

    id: Mapped[int] = mapped_column(primary_key=True)
    product_id: Mapped[int] = mapped_column(ForeignKey("products.id"))
    customer: Mapped[str]
    placed_at: Mapped[datetime] = mapped_column(DateTime(timezone=True), server_default=func.now())


def url() -> str:
    return os.environ["HORSIES_DATABASE_URL"].replace("postgresql://", "postgresql+psycopg://", 1)


@contextmanager
def transaction() -> Generator[Session]:
    """Open a session whose transaction commits at the end of the block."""
    with Session(create_engine(url(), poolclass=NullPool)) as session, session.begin():
        yield session
