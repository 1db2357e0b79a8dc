"""The words that builtin worlds are filled with: common, short, and none of them real data.

One list a kind, shared by the worlds, so that a world's file holds its rules only. The one surprising choice:
every entry is one lower-case word (people and cities apart), because a tiny model copies single words best.
"""

from __future__ import annotations

from random import Random


def _list(text: str) -> tuple[str, ...]:
    return tuple(text.split())


PEOPLE = _list(
    "Ada Alba Amos Anton Beth Cara Carl Cleo Dana Edna Elio Emil Erik Esra Faye Felix Fritz Gina "
    "Greta Hana Hugo Ida Igor Ines Ivan Jana Jonas Julia Kai Karim Lara Leo Lina Luca Magda Mara Marco "
    "Mila Mona Nadia Nico Nina Olga Omar Oscar Paula Petra Rana Remo Rosa Ruth Sara Silas Sven Tara Theo Tom "
    "Uma Vera Viktor Wanda Yara Yusuf Zeno"
)
COLOURS = _list("black blue brown green grey orange pink purple red silver white yellow")
THINGS = _list(
    "bag basket bell belt bench bike blanket book boot bottle bowl box brush camera candle chair clock coat "
    "cup desk drum fan flute fork frame glass glove guitar hammer hat jacket kettle knife ladder lamp mirror "
    "mug pan pen phone pillow plate radio ring rope rug scarf shelf shirt shoe skirt sofa spoon stool table "
    "tent toaster torch towel toy tray vase wallet watch"
)
DAY = range(8, 19)
"""Hours at which people work."""
SERVICES = _list(
    "account audit auth billing cart catalog chat coupon delivery export feed gateway geo image import index "
    "invoice ledger login mail map market media menu message notify offer order payment photo price profile "
    "queue quote rating report returns review search session shipping stock store tax ticket token track "
    "upload user video voice wallet web"
)
CITIES = {"Lisbon": 0, "London": 0, "Rome": 1, "Berlin": 1, "Oslo": 1, "Athens": 2, "Cairo": 2, "Nairobi": 3}
"""Hours ahead of universal time."""
EQUIPMENT = ("screen", "board", "phone", "camera", "printer")


def items(rng: Random, count: int) -> list[str]:
    """``count`` different goods, such as ``blue lamp``."""
    return [f"{rng.choice(COLOURS)} {thing}" for thing in rng.sample(THINGS, count)]


def numbers(rng: Random, count: int, digits: int) -> list[str]:
    """``count`` different identifiers of ``digits`` digits, none of them twice in one: those copy best."""
    drawn: dict[str, None] = {}
    while len(drawn) < count:
        text = "".join(rng.sample("0123456789", digits))
        if text[0] != "0":
            drawn[text] = None
    return list(drawn)


def number_pairs(rng: Random, count: int) -> list[tuple[str, str]]:
    """``count`` pairs of identifiers, of five digits and of four others; none occurs twice."""
    while True:
        pairs = [(text[:5], text[5:]) for text in numbers(rng, count, 9)]
        if all(len(set(column)) == count for column in zip(*pairs, strict=True)):
            return pairs
