"""Short made-up stories, put together from parts; no two need be alike."""

from __future__ import annotations

from .dice import Dice
from .facts import with_a

HEROES = (
    ("dog", "Max"), ("cat", "Luna"), ("fox", "Rusty"), ("mouse", "Pip"), ("bear", "Bruno"), ("rabbit", "Hazel"),
    ("owl", "Olga"), ("robot", "Bit"), ("dragon", "Ember"), ("girl", "Anna"), ("boy", "Tom"), ("horse", "Star"),
    ("duck", "Daisy"), ("frog", "Felix"), ("lion", "Leo"), ("penguin", "Waddle"), ("king", "Otto"), ("wolf", "Gray"),
)  # fmt: skip
PLACES = (
    "in a green forest",
    "by the sea",
    "on a small farm",
    "in a big city",
    "under an old bridge",
    "on a high hill",
)
WISHES = ("a red ball", "a new friend", "a golden key", "a warm coat", "a piece of cake", "a little boat")
TROUBLES = (
    "But a storm came, and the rain fell all night.",
    "But the road was long, and it grew dark.",
    "But a deep river lay in the way.",
    "But nobody knew where to look.",
)
HELPERS = ("an old owl", "a kind farmer", "a small ant", "a friendly whale", "a wise turtle", "a busy bee")
HELP = (
    "showed the way with a lamp", "shared some bread", "told a secret", "carried the load", "sang a song of courage",
)  # fmt: skip
ENDS = (
    "and they lived happily ever after.",
    "and from that day on they were friends.",
    "and everyone went home and slept well.",
    "and there was a big party with music.",
)


def story(dice: Dice, hero: str | None = None) -> str:
    """A story of four to six sentences about a `hero` (any of `HEROES` when None)."""
    kind, name = dice.pick([pair for pair in HEROES if hero in (None, pair[0])])
    wish, helper = dice.pick(WISHES), dice.pick(HELPERS)
    sentences = [
        f"Once upon a time there was {with_a(kind)} named {name} who lived {dice.pick(PLACES)}.",
        f"{name} wanted nothing more than {wish}.",
        f"One morning {name} set out to find it." if dice.chance(0.6) else "",
        dice.pick(TROUBLES),
        f"Then {helper} came by and {dice.pick(HELP)}." if dice.chance(0.8) else "",
        f"In the end {name} found {wish}, {dice.pick(ENDS)}",
    ]
    return " ".join(sentence for sentence in sentences if sentence)
