"""What can be asked of the embedded model: for each topic how to ask it, and how to make question and answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from .dice import Dice
from .facts import (
    AMBIGUOUS,
    CAPITALS,
    COLORS,
    DAYS,
    GLOSSARY,
    GREETINGS,
    HOW_MANY,
    IRREGULAR_KINDS,
    KINDS,
    MONTHS,
    NUMBERS,
    OPPOSITES,
    ORDINALS,
    PLURALS,
    SOUNDS,
    SPELLING,
    THINGS,
    WITH_ARTICLE,
    YOUNG,
    with_a,
)
from .stories import HEROES, story

SYLLABLES = (
    "ba", "ko", "ri", "ta", "mon", "del", "fi", "sur", "qua", "net", "lo", "vi", "gra", "pin", "zo", "ter", "us", "ing",
    "al", "em",
)  # fmt: skip


@dataclass(frozen=True)
class Facts:
    """What one question is about.

    Attributes:
        fields: what goes into the phrasing.
        answer: the whole answer.
        accept: any of these in an answer makes it right; empty: there is no telling.
    """

    fields: Mapping[str, str]
    answer: str
    accept: tuple[str, ...] = ()


@dataclass(frozen=True)
class Topic:
    """A kind of question.

    Attributes:
        weight: how often it is asked, relative to the others.
        phrasings: ways to ask that the model is trained on.
        held_out: ways to ask that it never sees, to score it with.
    """

    name: str
    weight: float
    make: Callable[[Dice], Facts]
    phrasings: tuple[str, ...]
    held_out: tuple[str, ...] = ()


def _sum(dice: Dice) -> Facts:
    limit = 11 if dice.chance(0.5) else 21
    return _calculation(dice.below(limit), dice.below(limit), "+", dice)


def _difference(dice: Dice) -> Facts:
    a = dice.below(21)
    return _calculation(a, dice.below(a + 1), "-", dice)


def _product(dice: Dice) -> Facts:
    return _calculation(dice.below(11), dice.below(11), "*", dice)


def _calculation(a: int, b: int, sign: str, dice: Dice) -> Facts:
    value = {"+": a + b, "-": a - b, "*": a * b}[sign]
    space = " " if dice.chance(0.4) else ""
    fields = {"a": f"{a}", "b": f"{b}", "expression": f"{a}{space}{sign}{space}{b}"}
    return Facts(fields, f"{a} {sign} {b} = {value}.", (f"= {value}.",))


def _larger(dice: Dice) -> Facts:
    a, b = dice.several(range(51), 2)
    return Facts({"a": f"{a}", "b": f"{b}"}, f"{max(a, b)} is larger.", (f"{max(a, b)} is larger",))


def _even(dice: Dice) -> Facts:
    n = dice.below(51)
    return Facts({"n": f"{n}"}, f"{n} is {'odd' if n % 2 else 'even'}.", ("odd" if n % 2 else "even",))


def _color(dice: Dice) -> Facts:
    return Facts({}, f"{dice.pick(COLORS).capitalize()}.", tuple(color.capitalize() for color in COLORS))


def _color_of(dice: Dice) -> Facts:
    thing = dice.pick([*THINGS])
    return Facts({"thing": thing}, f"{thing.capitalize()} is {THINGS[thing]}.", (THINGS[thing],))


def _one_of_kind(dice: Dice) -> Facts:
    kind = dice.pick([*KINDS])
    names = tuple(name.capitalize() for name in KINDS[kind])
    return Facts({"kind": kind, "a_kind": with_a(kind)}, f"{dice.pick(names)}.", names)


def _several_of_kind(dice: Dice) -> Facts:
    kind = dice.pick([*KINDS])
    count = dice.between(2, min(6, len(KINDS[kind])))
    names = dice.several(KINDS[kind], count)
    number = NUMBERS[count] if dice.chance(0.6) else f"{count}"
    answer = f"{_listed(names)}."
    return Facts({"n": number, "kinds": _kinds(kind)}, answer[0].upper() + answer[1:], KINDS[kind])


def _greeting(dice: Dice) -> Facts:
    words = dice.pick([*GREETINGS])
    mark = "?" if words.split()[0] in {"how", "who", "what", "are"} else dice.pick(("!", ".", ""))
    return Facts({"words": words[0].upper() + words[1:] + mark}, GREETINGS[words], (GREETINGS[words],))


def _say(dice: Dice) -> Facts:
    words = dice.pick(("hello", "hello", "hi", "goodbye", "good morning", "good night", *SPELLING, *COLORS, *PLURALS))
    return Facts({"words": words}, f"{words.capitalize()}!", (words.capitalize(),))


def _capital(dice: Dice) -> Facts:
    country = dice.pick([*CAPITALS])
    fields = {"country": _the(country), "bare": country}
    return Facts(fields, f"The capital of {_the(country)} is {CAPITALS[country]}.", (CAPITALS[country],))


def _capital_of(dice: Dice) -> Facts:
    country = dice.pick([*CAPITALS])
    return Facts({"city": CAPITALS[country]}, f"{CAPITALS[country]} is the capital of {_the(country)}.", (country,))


def _count(dice: Dice) -> Facts:
    if dice.chance(0.5):
        last = dice.between(2, 20)
        answer = ", ".join(NUMBERS[1 : last + 1]).capitalize() + "."
        return Facts({"n": NUMBERS[last]}, answer, (answer,))
    last = dice.between(2, 30)
    answer = ", ".join(f"{n}" for n in range(1, last + 1)) + "."
    return Facts({"n": f"{last}"}, answer, (answer,))


def _count_between(dice: Dice) -> Facts:
    a, b = dice.several(range(1, 31), 2)
    numbers = range(a, b + 1) if a < b else range(a, b - 1, -1)
    answer = ", ".join(f"{n}" for n in numbers) + "."
    return Facts({"a": f"{a}", "b": f"{b}"}, answer, (answer,))


def _table(dice: Dice) -> Facts:
    n = dice.between(1, 10)
    answer = ", ".join(f"{n * i}" for i in range(1, 11)) + "."
    return Facts({"n": f"{n}"}, answer, (answer,))


def _number_word(dice: Dice) -> Facts:
    n = dice.below(21)
    return Facts({"n": f"{n}"}, f"{NUMBERS[n].capitalize()}.", (NUMBERS[n].capitalize(),))


def _alphabet(dice: Dice) -> Facts:
    answer = ", ".join("ABCDEFGHIJKLMNOPQRSTUVWXYZ") + "."
    return Facts({}, answer, (answer,))


def _next_letter(dice: Dice) -> Facts:
    n = dice.below(25)
    return Facts({"letter": chr(65 + n)}, f"{chr(66 + n)} comes after {chr(65 + n)}.", (f"{chr(66 + n)} comes",))


def _all_days(dice: Dice) -> Facts:
    answer = f"{', '.join(DAYS)}."
    return Facts({}, answer, (answer,))


def _all_months(dice: Dice) -> Facts:
    answer = f"{', '.join(MONTHS)}."
    return Facts({}, answer, (answer,))


def _neighbour(names: tuple[str, ...], dice: Dice) -> Facts:
    at = dice.below(len(names))
    where = dice.pick(("after", "before"))
    other = names[(at + (1 if where == "after" else -1)) % len(names)]
    return Facts({"where": where, "name": names[at]}, f"{other} comes {where} {names[at]}.", (f"{other} comes",))


def _nth_month(dice: Dice) -> Facts:
    n = dice.below(12)
    answer = f"{MONTHS[n]} is the {ORDINALS[n]} month."
    return Facts({"nth": ORDINALS[n]}, answer, (MONTHS[n],))


def _how_many(dice: Dice) -> Facts:
    what = dice.pick([*HOW_MANY])
    return Facts({"what": what}, f"{HOW_MANY[what].capitalize()}.", (HOW_MANY[what].capitalize(),))


def _sound(dice: Dice) -> Facts:
    animal = dice.pick([*SOUNDS])
    return Facts({"animal": with_a(animal)}, f"{with_a(animal).capitalize()} says {SOUNDS[animal]}.", (SOUNDS[animal],))


def _young(dice: Dice) -> Facts:
    animal = dice.pick([*YOUNG])
    return Facts({"animal": animal}, f"A young {animal} is called a {YOUNG[animal]}.", (YOUNG[animal],))


def _opposite(dice: Dice) -> Facts:
    pair = dice.pick([*OPPOSITES.items()])
    word, other = pair if pair[1] in AMBIGUOUS or dice.chance(0.5) else pair[::-1]
    return Facts({"word": word}, f"The opposite of {word} is {other}.", (other,))


def _plural(dice: Dice) -> Facts:
    word = dice.pick([*PLURALS])
    return Facts({"word": word}, f"The plural of {word} is {PLURALS[word]}.", (f"is {PLURALS[word]}.",))


def _spell(dice: Dice) -> Facts:
    word = dice.pick(SPELLING)
    answer = "-".join(word.upper()) + "."
    return Facts({"word": word}, answer, (answer,))


def _first_letter(dice: Dice) -> Facts:
    word = dice.pick((*SPELLING, *OPPOSITES))
    return Facts({"word": word}, f"The first letter of {word} is {word[0].upper()}.", (f"is {word[0].upper()}.",))


def _explain(dice: Dice) -> Facts:
    term = dice.pick([*GLOSSARY])
    bare = term.split(" ", 1)[1] if term.split(" ", 1)[0] in {"a", "the"} else term
    return Facts({"term": term, "bare": bare}, GLOSSARY[term], (GLOSSARY[term],))


def _story(dice: Dice) -> Facts:
    return Facts({}, story(dice), ("Once upon a time",))


def _story_about(dice: Dice) -> Facts:
    hero = dice.pick(HEROES)[0]
    return Facts({"hero": with_a(hero)}, story(dice, hero), (f"{with_a(hero)} named",))


def _unknown(dice: Dice) -> Facts:
    fields = {
        "country": _the(dice.pick([*CAPITALS])),
        "city": dice.pick([*CAPITALS.values()]),
        "word": dice.pick((*SPELLING, *PLURALS)),
        "odd": _invented(dice),
        "odder": _invented(dice),
    }
    return Facts(fields, "I do not know that. I am a very small model.", ("I do not know",))


def _invented(dice: Dice) -> str:
    return "".join(dice.pick(SYLLABLES) for _ in range(dice.between(2, 4)))


def _the(country: str) -> str:
    return f"the {country}" if country in WITH_ARTICLE else country


def _kinds(kind: str) -> str:
    return IRREGULAR_KINDS.get(kind, kind + "s")


def _listed(names: list[str]) -> str:
    return ", ".join(names[:-1]) + f" and {names[-1]}"


TOPICS: tuple[Topic, ...] = (
    Topic("sum", 16, _sum, (
        "What is {expression}?", "What is {a} plus {b}?", "{expression}=", "{expression}", "How much is {expression}?",
        "Add {a} and {b}.", "Calculate {expression}.", "What is the sum of {a} and {b}?",
        "What does {expression} make?",
    ), ("Can you tell me what {expression} is?", "How much is {a} plus {b}?", "Compute {expression}.")),
    Topic("difference", 7, _difference, (
        "What is {expression}?", "What is {a} minus {b}?", "{expression}=", "{expression}", "How much is {expression}?",
        "Take {b} away from {a}.", "Calculate {expression}.",
    ), ("How much is {a} minus {b}?", "Compute {expression}.")),
    Topic("product", 6, _product, (
        "What is {expression}?", "What is {a} times {b}?", "{expression}=", "{expression}", "How much is {expression}?",
        "Multiply {a} by {b}.", "Calculate {expression}.",
    ), ("How much is {a} times {b}?", "Compute {expression}.")),
    Topic("larger", 2, _larger, (
        "Which is larger, {a} or {b}?", "Which number is bigger, {a} or {b}?", "What is more, {a} or {b}?",
    ), ("Which is bigger, {a} or {b}?",)),
    Topic("even", 1.5, _even, (
        "Is {n} even or odd?", "Is {n} odd?", "Is {n} even?", "Is the number {n} odd or even?",
    ), ("Is the number {n} even?",)),
    Topic("color", 2, _color, (
        "Name a color.", "Tell me a color.", "Give me a color.", "Name one color.", "Say a color.", "Name any color.",
        "Name a colour.", "What is your favorite color?", "Pick a color.",
    ), ("Think of a color.", "Choose a color.")),
    Topic("color of", 3, _color_of, (
        "What color is {thing}?", "What is the color of {thing}?", "Which color has {thing}?", "Color of {thing}?",
    ), ("Tell me the color of {thing}.", "Which color is {thing}?")),
    Topic("one of a kind", 4, _one_of_kind, (
        "Name {a_kind}.", "Tell me {a_kind}.", "Give me the name of {a_kind}.", "Name one {kind}.", "Say {a_kind}.",
        "Name any {kind}.", "Give an example of {a_kind}.",
    ), ("Think of {a_kind}.", "Name some {kind}.")),
    Topic("several of a kind", 5, _several_of_kind, (
        "Name {n} {kinds}.", "List {n} {kinds}.", "Tell me {n} {kinds}.", "Give me {n} {kinds}.",
        "Give me a list of {n} {kinds}.", "Which {n} {kinds} do you know?",
    ), ("Write down {n} {kinds}.", "Can you name {n} {kinds}?")),
    Topic("greeting", 4, _greeting, ("{words}",)),
    Topic("say", 3, _say, (
        "Say {words}.", "Say the word {words}.", "Please say {words}.", "Say {words}", "Repeat after me: {words}.",
        "Can you say {words}?",
    ), ("Just say {words}.", "Repeat the word {words}.")),
    Topic("capital", 10, _capital, (
        "What is the capital of {country}?", "Capital of {country}?", "Name the capital of {country}.",
        "Which city is the capital of {country}?", "What is the capital city of {country}?", "{bare} capital?",
        "Tell me the capital of {country}.", "capital of {country}", "The capital of {country}?",
    ), (
        "Do you know the capital of {country}?", "Give me the capital of {country}.",
        "What's the capital of {country}?",
    )),
    Topic("capital reversed", 3, _capital_of, (
        "{city} is the capital of which country?", "Which country has {city} as its capital?",
        "What country is {city} the capital of?", "{city} is the capital of what country?",
    ), ("Of which country is {city} the capital?",)),
    Topic("count", 7, _count, (
        "Count to {n}.", "Count up to {n}.", "Count from one to {n}.", "Can you count to {n}?", "Count from 1 to {n}.",
        "Please count to {n}.", "Start at one and count to {n}.", "Count up from one to {n}.", "Let us count to {n}.",
    ), ("Please could you count to {n}?", "Count all the way to {n}.")),
    Topic("count between", 5, _count_between, (
        "Count from {a} to {b}.", "List the numbers from {a} to {b}.", "Write the numbers from {a} to {b}.",
        "Say the numbers from {a} to {b}.", "Tell me the numbers from {a} to {b}.", "Count {a} to {b}.",
        "Numbers from {a} to {b}",
    ), ("Give me the numbers from {a} to {b}.",)),
    Topic("table", 1, _table, (
        "Say the {n} times table.", "What is the {n} times table?", "Write the times table of {n}.",
    ), ("Tell me the {n} times table.",)),
    Topic("number word", 1, _number_word, (
        "Write {n} as a word.", "Spell the number {n}.", "Write the number {n} in letters.",
    ), ("Write {n} in letters.",)),
    Topic("alphabet", 0.5, _alphabet, (
        "Say the alphabet.", "List the letters of the alphabet.", "What is the alphabet?",
    ), ("Tell me the alphabet.",)),
    Topic("next letter", 1, _next_letter, (
        "Which letter comes after {letter}?", "What letter follows {letter}?",
        "What comes after {letter} in the alphabet?",
    ), ("Which letter follows {letter}?",)),
    Topic("days", 0.7, _all_days, (
        "List the days of the week.", "Name the days of the week.", "What are the days of the week?", "Name all days.",
    ), ("Tell me the days of the week.",)),
    Topic("months", 0.7, _all_months, (
        "List the months of the year.", "Name the months of the year.", "What are the months?", "Name all months.",
    ), ("Tell me the months of the year.",)),
    Topic("day", 2, partial(_neighbour, DAYS), (
        "Which day comes {where} {name}?", "What day comes {where} {name}?", "What day is {where} {name}?",
        "What is the day {where} {name}?",
    ), ("Which day is {where} {name}?",)),
    Topic("month", 2, partial(_neighbour, MONTHS), (
        "Which month comes {where} {name}?", "What month comes {where} {name}?", "What month is {where} {name}?",
        "What is the month {where} {name}?",
    ), ("Which month is {where} {name}?",)),
    Topic("nth month", 1, _nth_month, (
        "What is the {nth} month?", "Which month is the {nth}?", "What is the {nth} month of the year?",
    ), ("Name the {nth} month.",)),
    Topic("how many", 2.5, _how_many, ("How many {what}?", "Tell me how many {what}.", "how many {what}"),
          ("Do you know how many {what}?",)),
    Topic("sound", 2, _sound, (
        "What does {animal} say?", "What sound does {animal} make?", "Which sound does {animal} make?",
    ), ("What noise does {animal} make?",)),
    Topic("young", 1.5, _young, (
        "What is a young {animal} called?", "What do you call a young {animal}?", "What is a baby {animal} called?",
    ), ("What do you call a baby {animal}?",)),
    Topic("opposite", 4, _opposite, (
        "What is the opposite of {word}?", "Opposite of {word}?", "Name the opposite of {word}.",
        "Tell me the opposite of {word}.", "Which word is the opposite of {word}?",
    ), ("Give me the opposite of {word}.", "What's the opposite of {word}?")),
    Topic("plural", 3, _plural, (
        "What is the plural of {word}?", "Plural of {word}?", "Tell me the plural of {word}.",
        "What is the plural form of {word}?",
    ), ("Give me the plural of {word}.", "Name the plural of {word}.")),
    Topic("spelling", 4, _spell, (
        "Spell the word {word}.", "Spell {word}.", "How do you spell {word}?", "How is {word} spelled?",
        "Can you spell {word}?",
    ), ("Spell {word} for me.", "How do I spell {word}?")),
    Topic("first letter", 2, _first_letter, (
        "What is the first letter of {word}?", "Which letter does {word} start with?", "First letter of {word}?",
    ), ("Tell me the first letter of {word}.",)),
    Topic("explain", 7, _explain, (
        "What is {term}?", "Explain {term}.", "What does {bare} mean?", "Tell me about {term}.", "Describe {term}.",
        "Can you explain {term}?", "Explain {bare}.", "What is {bare}?", "Explain what {term} is.",
    ), ("Please explain {term} to me.", "Tell me what {term} is.", "Can you describe {term}?")),
    Topic("story", 1.5, _story, (
        "Tell me a story.", "Tell me a short story.", "Write a story.", "Write a short story.", "Once upon a time",
    ), ("Please write me a story.",)),
    Topic("story about", 4, _story_about, (
        "Tell me a story about {hero}.", "Write a story about {hero}.", "Write a short story about {hero}.",
        "Tell me a short story about {hero}.", "I want to hear a story about {hero}.",
    ), ("Can you tell me a story about {hero}?", "Make up a story about {hero}.")),
    Topic("unknown", 5, _unknown, (
        "What is the weather in {city}?", "Who is the president of {country}?", "How many people live in {city}?",
        "Translate {word} into French.", "Who wrote {odd}?", "What is {odd}?", "Where is the {odd} of {odder}?",
        "How do I cook {odd}?", "What time is it?", "What is the meaning of life?", "Why is {word} so {odd}?",
        "Tell me about {odd} and {odder}.", "Explain {odd}.", "{odd} {odder}", "How far is it from {city} to {odd}?",
        "Who invented the {word}?", "What is the price of a {word}?", "Write a program that sorts {word}.",
        "When was {city} founded?", "Who won the game in {city}?", "What is the capital of {odd}?",
        "How big is {city}?", "How tall is {odd}?", "Who built the {word}?", "Which {word} is the best?",
    ), ("How old is {city}?", "Who painted the {word}?")),
)  # fmt: skip
"""Every topic; the weights are shares of the questions."""
