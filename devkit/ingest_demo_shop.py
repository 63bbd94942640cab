"""The shop of `./dev demo --ingest`: its tables, and as a program its three writers, which buy, cancel and move until stdin ends.

A purchase moves money from a customer to an order, and goods from a shelf to an order, in one transaction. So two sums over three tables
never change: balances and payments, and stock and ordered goods.
"""

from __future__ import annotations

import contextlib
import random
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pymysql
import pymysql.cursors
from pymysql.constants import CLIENT

from devkit.databases import MariaDbServer

DATABASE = "shop"
WRITERS = 3
CUSTOMERS, PRODUCTS, ORDERS = 8_000, 300, 12_000
PAUSE_S = 0.03
"""Between two transactions of a writer."""
KEYS = {"customers": "id", "products": "sku", "orders": "id"}
SCHEMA = f"""
create table customers(id int primary key, name varchar(40) not null, city varchar(20), balance decimal(12, 2) not null);
create table products(sku varchar(12) primary key, price decimal(8, 2) not null, stock int not null);
create table orders(id bigint auto_increment primary key, customer_id int not null, sku varchar(12) not null, quantity int not null,
  paid decimal(12, 2) not null, ordered_at timestamp(6) not null default current_timestamp(6));
insert into customers select seq, concat('customer ', seq), elt(1 + seq % 4, 'Rome', 'Oslo', 'Lima', 'Bari'), 1000
  from seq_1_to_{CUSTOMERS};
insert into products select concat('sku-', lpad(seq, 4, '0')), 5.9 + seq % 95, 200 from seq_1_to_{PRODUCTS};
insert into orders(customer_id, sku, quantity, paid, ordered_at)
  select 1 + seq * 7 % {CUSTOMERS}, sku, 1 + seq % 3, price * (1 + seq % 3), now(6) - interval ({ORDERS} - seq) second
  from seq_1_to_{ORDERS} join products on sku = concat('sku-', lpad(1 + seq % {PRODUCTS}, 4, '0'))
"""
ALTER = "ALTER TABLE orders ADD COLUMN channel varchar(8) NOT NULL DEFAULT 'web'"
CHANNELS = ("web", "app", "desk")


@dataclass(frozen=True, slots=True)
class ShopSums:
    """What no transaction of the shop changes.

    Args:
        money: balances of customers and payments of orders.
        goods: stock of products and quantities of orders.
    """

    money: Decimal
    goods: int


class DemoShop:
    """The shop as its database has it.

    Args:
        server: a server that runs.
    """

    def __init__(self, server: MariaDbServer) -> None:
        self.port = server.port
        self._db = connect(server.port, database="")
        self.run(f"create database {DATABASE} character set utf8mb4; use {DATABASE};{SCHEMA}")
        self.version = str(self.run("select version()")[0]["version()"])
        self.sums = self.read_sums()

    def run(self, text: str) -> list[dict[str, Any]]:
        """Run statements. Returns the rows of the last one that has any."""
        with self._db.cursor(pymysql.cursors.DictCursor) as cursor:
            cursor.execute(text)
            rows = list(cursor.fetchall())
            while cursor.nextset():
                rows = list(cursor.fetchall()) or rows
            return rows

    def rows(self, table: str) -> list[dict[str, Any]]:
        """All rows of a table. Times are in UTC and have no zone."""
        return self.run(f"select * from {table}")

    def read_sums(self) -> ShopSums:
        """The two sums, by one statement."""
        (found,) = self.run(
            "select (select sum(balance) from customers) + (select sum(paid) from orders) as money, "
            "(select sum(stock) from products) + (select sum(quantity) from orders) as goods"
        )
        return ShopSums(Decimal(found["money"]), int(found["goods"]))

    def close(self) -> None:
        """Close the session."""
        self._db.close()


class ShopWriters:
    """The three writers, in a process of their own."""

    def __init__(self, shop: DemoShop) -> None:
        command = [sys.executable, "-m", "devkit.ingest_demo_shop", str(shop.port)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True)
        assert self._process.stdout is not None
        self._process.stdout.readline()  # They have begun.

    def use_channel(self) -> None:
        """Let orders name the channel that they came by, from now on."""
        assert self._process.stdin is not None
        self._process.stdin.write("channel\n")
        self._process.stdin.flush()

    def stop(self) -> int:
        """Let them finish. Returns how many transactions they committed."""
        said, _ = self._process.communicate(timeout=30)
        return int(said)

    def close(self) -> None:
        """End the process. May be called again."""
        self._process.kill()
        self._process.communicate()


class ShopWriter:
    """One writer, with a connection of its own.

    Attributes:
        has_channel: whether orders name their channel.
        committed: how many transactions it has committed.
    """

    def __init__(self, port: int, number: int) -> None:
        self.has_channel = False
        self.committed = 0
        self._db = connect(port, database=DATABASE)
        self._db.autocommit(False)
        self._cursor = self._db.cursor()
        self._random = random.Random(number)
        self._fresh = 10**6 * (number + 1)

    def step(self) -> None:
        """One transaction. A deadlock with another writer ends it without a trace."""
        steps = [self.buy, self.cancel, self.move, self.change_price, self.give_number, self.give_up]
        try:
            if self._random.choices(steps, [60, 14, 10, 6, 4, 6])[0]():
                self._db.commit()
                self.committed += 1
            else:
                self._db.rollback()
        except pymysql.MySQLError:
            with contextlib.suppress(pymysql.MySQLError):
                self._db.rollback()

    def buy(self) -> bool:
        """A customer buys, if money and stock suffice."""
        sku, quantity, customer = f"sku-{self._random.randint(1, PRODUCTS):04}", self._random.randint(1, 3), self._customer()
        self._run("select price from products where sku = %s", sku)
        found: Any = self._cursor.fetchone()
        total = found[0] * quantity
        paid = self._run("update customers set balance = balance - %s where id = %s and balance >= %s", total, customer, total)
        taken = self._run("update products set stock = stock - %s where sku = %s and stock >= %s", quantity, sku, quantity)
        if self.has_channel:
            channel = self._random.choice(CHANNELS)
            order = "insert into orders(customer_id, sku, quantity, paid, channel) values (%s, %s, %s, %s, %s)"
            self._run(order, customer, sku, quantity, total, channel)
        else:
            self._run("insert into orders(customer_id, sku, quantity, paid) values (%s, %s, %s, %s)", customer, sku, quantity, total)
        return paid == taken == 1

    def cancel(self) -> bool:
        """An order is deleted: money and goods go back."""
        self._run(
            "select id, customer_id, sku, quantity, paid from orders where id >= %s limit 1 for update", self._random.randint(1, ORDERS)
        )
        found: Any = self._cursor.fetchone()
        if found is None:
            return False
        order, customer, sku, quantity, paid = found
        returned = self._run("update customers set balance = balance + %s where id = %s", paid, customer)
        shelved = self._run("update products set stock = stock + %s where sku = %s", quantity, sku)
        return returned == shelved == self._run("delete from orders where id = %s", order) == 1

    def move(self) -> bool:
        """A customer moves to another city."""
        return self._run("update customers set city = %s where id = %s", f"city {self._random.randint(1, 99)}", self._customer()) == 1

    def change_price(self) -> bool:
        """A price changes for later orders."""
        return self._run("update products set price = price + 0.1 where sku = %s", f"sku-{self._random.randint(1, PRODUCTS):04}") == 1

    def give_number(self) -> bool:
        """The key of a customer changes."""
        self._fresh += 1
        return self._run("update customers set id = %s where id = %s", self._fresh, self._customer()) == 1

    def give_up(self) -> bool:
        """A purchase that is rolled back."""
        self.buy()
        return False

    def _run(self, text: str, *arguments: object) -> int:
        return int(self._cursor.execute(text, arguments))

    def _customer(self) -> int:
        return self._random.randint(1, CUSTOMERS)


def connect(port: int, *, database: str) -> Any:
    """A session with times in UTC."""
    return pymysql.connect(
        host="127.0.0.1",
        port=port,
        user="objcat",
        database=database or None,
        autocommit=True,
        init_command="set time_zone = '+00:00'",
        client_flag=CLIENT.MULTI_STATEMENTS,
    )


def main() -> None:
    """Write until stdin ends. A line there lets orders name their channel. Prints a line at the start, and the transactions at the end."""
    writers = [ShopWriter(int(sys.argv[1]), number) for number in range(WRITERS)]
    ended = threading.Event()

    def keep_writing(writer: ShopWriter) -> None:
        while not ended.is_set():
            writer.step()
            time.sleep(PAUSE_S)

    threads = [threading.Thread(target=keep_writing, args=(writer,)) for writer in writers]
    for thread in threads:
        thread.start()
    print("begun", flush=True)
    for _ in sys.stdin:
        for writer in writers:
            writer.has_channel = True
    ended.set()
    for thread in threads:
        thread.join()
    print(sum(writer.committed for writer in writers))


if __name__ == "__main__":
    main()
