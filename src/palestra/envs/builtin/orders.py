"""Orders: settle a ticket in a small shop, where only the records tell what is right.

Surprising: one word, dear, turns a refund into an escalation; records that a ticket is not about stay closed.
"""

from dataclasses import dataclass
from random import Random
from typing import Literal, NamedTuple

from palestra.envs import Case, CaseEnv, Plan, ToolError, call, tool
from palestra.envs.builtin import words

KINDS = ("double_charge", "parcel_not_arrived", "broken", "wrong_item", "changed_mind")
PLACES = {"in transit": "wait", "delivered": "escalated", "lost": "replaced"}
CHARGES = {"once": "refused", "twice": "refunded"}
PRICES, STOCK, WINDOW, FEE = {"cheap": (12, 99), "dear": (140, 490)}, ("none", "none", "3", "7"), 14, 5


class Order(NamedTuple):
    """One order: its money, dear or cheap, its parcel, the days since it came."""

    id: str
    item: str
    price: str
    paid: int
    parcel: str
    place: str
    day: int
    charged: str
    stock: str


@dataclass
class Ticket(Case):
    """A ticket and the shop's records; ``received`` is what the customer says came."""

    kind: str
    customer: str
    by_name: bool
    received: str
    order: Order
    orders: list[Order]

    def plan(self) -> Plan:
        """Look up what the kind of ticket asks for, then replace, refund, escalate or leave it."""
        order, kind, at, name = self.order, self.kind, self.order.id, self.customer
        wish = "refunded" if kind == "changed_mind" else "replaced"
        wish = "refused" if order.day > WINDOW or order.item == self.received else wish
        look, verdict = {
            "parcel_not_arrived": (call("track", parcel=order.parcel), PLACES[order.place]),
            "double_charge": (call("get_payments", order_id=at), CHARGES[order.charged]),
        }.get(kind, (call("check_policy", order_id=at, kind=kind), wish))
        looks = [call("find_orders", customer=name)] * self.by_name + [call("get_order", order_id=at), look]
        looks += [call("check_stock", item=order.item)] * (verdict == "replaced")
        verdict = "refunded" if verdict == "replaced" and order.stock == "none" else verdict
        reason = "missing" if verdict == "escalated" else "amount"
        verdict = "escalated" if verdict == "refunded" and order.price == "dear" else verdict
        deeds = {"replaced": [call("replace", order_id=at, item=order.item)]}
        deeds["refunded"] = [call("refund", order_id=at, amount=order.paid - FEE * (kind == "changed_mind"))]
        deeds["escalated"] = [call("escalate", order_id=at, reason=reason)]
        return Plan(looks, deeds.get(verdict, []), call("finish", verdict=verdict))


class Orders(CaseEnv[Ticket]):
    """Settle a customer's ticket in a small shop."""

    instructions = """parcel not arrived: track. double charge: get_payments. others: check_policy.
lost, broken, wrong: check_stock, replace or else refund. closed: refuse. dear, missing: escalate."""
    deed_tools = ("refund", "replace", "escalate")

    def generate(self, rng: Random, difficulty: int) -> Ticket:
        """Level 1: two kinds; 2: all kinds, half by name; 3: by name among three orders."""
        kind, orders = rng.choice(KINDS[:2] if difficulty == 1 else KINDS), []
        *goods, other = words.items(rng, 4 if difficulty == 3 else 2)
        for (number, parcel), item in zip(words.number_pairs(rng, len(goods)), goods, strict=True):
            price, charged = rng.choice(("cheap", "cheap", "dear")), rng.choice([*CHARGES, "twice"])
            place = rng.choice([*PLACES, "lost"]) if kind in KINDS[:2] else "delivered"
            paid, day, stock = rng.randint(*PRICES[price]), rng.randint(1, 20), rng.choice(STOCK)
            orders.append(Order(number, item, price, paid, f"P{parcel}", place, day, charged, stock))
        order, by_name = rng.choice(orders), kind != "wrong_item" and rng.random() < (difficulty - 1) / 2
        received = order.item if kind == "wrong_item" and rng.random() < 0.25 else other
        return Ticket(kind, rng.choice(words.PEOPLE), by_name, received, order, orders)

    def observe(self, state: Ticket) -> str:
        """The ticket as the customer wrote it."""
        about = f"the {state.order.item}" if state.by_name else f"order {state.order.id}"
        came = f", a {state.received} came" if state.kind == "wrong_item" else ""
        return f"Ticket from {state.customer}: {about}, {state.kind.replace('_', ' ')}{came}."

    def _order(self, word: str, *kinds: str) -> Order:
        if kinds and self.state.kind not in kinds:
            raise ToolError(f"the ticket says {self.state.kind.replace('_', ' ')}")
        for order in self.state.orders:
            if word in (order.id, order.parcel, order.item):
                return order
        raise ToolError(f"{word} is unknown")

    @tool
    def find_orders(self, customer: str) -> str:
        """Orders of a customer."""
        mine = self.state.orders if customer == self.state.customer else []
        return f"{customer}: " + (", ".join(f"{order.item} {order.id}" for order in mine) or "no orders")

    @tool
    def get_order(self, order_id: str) -> str:
        """Item, payment and parcel."""
        return "order {0.id}: item {0.item}, paid {0.paid}, parcel {0.parcel}".format(self._order(order_id))

    @tool
    def track(self, parcel: str) -> str:
        """Where a parcel is."""
        return f"parcel {parcel}: {self._order(parcel, 'parcel_not_arrived').place}"

    @tool
    def check_policy(self, order_id: str, kind: Literal["broken", "changed_mind", "wrong_item"]) -> str:
        """Return rules."""
        order = self._order(order_id, kind)
        closed = order.day > WINDOW or order.item == self.state.received
        offer = f"open, {order.price}, refund {order.paid - FEE}" if kind == "changed_mind" else "open"
        return f"day {order.day} of {WINDOW}, {'closed' if closed else offer}"

    @tool
    def check_stock(self, item: str) -> str:
        """Pieces left."""
        return "{0.item}: {0.stock} in stock, {0.price}".format(self._order(item, *KINDS[1:4]))

    @tool
    def get_payments(self, order_id: str) -> str:
        """Charges made."""
        return "order {0.id}: charged {0.charged}, {0.price}".format(self._order(order_id, "double_charge"))

    @tool
    def refund(self, order_id: str, amount: int) -> str:
        """Pay back."""
        return f"order {self._order(order_id).id}: refunded {amount}"

    @tool
    def replace(self, order_id: str, item: str) -> str:
        """Ship anew."""
        return f"order {self._order(order_id).id}: shipped {item}"

    @tool
    def escalate(self, order_id: str, reason: Literal["missing", "amount"]) -> str:
        """Ask a colleague."""
        return f"order {self._order(order_id).id}: escalated, {reason}"

    @tool
    def finish(self, verdict: Literal["refunded", "replaced", "escalated", "wait", "refused"]) -> str:
        """End the ticket."""
        return f"finished: {verdict}"
