"""What the embedded model is taught: common knowledge and the words of batching, as plain tables."""

from __future__ import annotations


def _pairs(text: str) -> dict[str, str]:
    """``"France: Paris, Italy: Rome"`` as a dict."""
    return dict(entry.strip().split(": ", 1) for entry in text.replace("\n", " ").split(", "))


def with_a(noun: str) -> str:
    """``a cat``, ``an owl``."""
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.replace("\n", " ").split(","))


CAPITALS = _pairs(
    """France: Paris, Germany: Berlin, Italy: Rome, Spain: Madrid, Portugal: Lisbon, England: London, Ireland: Dublin,
    Scotland: Edinburgh, Belgium: Brussels, Netherlands: Amsterdam, Switzerland: Bern, Austria: Vienna, Poland: Warsaw,
    Hungary: Budapest, Greece: Athens, Turkey: Ankara, Russia: Moscow, Ukraine: Kyiv, Sweden: Stockholm, Norway: Oslo,
    Denmark: Copenhagen, Finland: Helsinki, Iceland: Reykjavik, Romania: Bucharest, Bulgaria: Sofia, Serbia: Belgrade,
    Croatia: Zagreb, Estonia: Tallinn, Latvia: Riga, Lithuania: Vilnius, Japan: Tokyo, China: Beijing, India: New Delhi,
    South Korea: Seoul, Thailand: Bangkok, Vietnam: Hanoi, Indonesia: Jakarta, Malaysia: Kuala Lumpur, Nepal: Kathmandu,
    Philippines: Manila, Pakistan: Islamabad, Bangladesh: Dhaka, Mongolia: Ulaanbaatar, Iran: Tehran, Iraq: Baghdad,
    Saudi Arabia: Riyadh, Qatar: Doha, Egypt: Cairo, Morocco: Rabat, Algeria: Algiers, Tunisia: Tunis, Kenya: Nairobi,
    Ethiopia: Addis Ababa, Ghana: Accra, Senegal: Dakar, Nigeria: Abuja, Uganda: Kampala, Canada: Ottawa,
    Mexico: Mexico City, Cuba: Havana, Jamaica: Kingston, Brazil: Brasilia, Argentina: Buenos Aires, Chile: Santiago,
    Peru: Lima, Colombia: Bogota, Ecuador: Quito, Uruguay: Montevideo, Venezuela: Caracas, Australia: Canberra,
    New Zealand: Wellington, United States: Washington"""
)
WITH_ARTICLE = {"Netherlands", "Philippines", "United States"}
"""Countries that are spoken of with "the"."""

COLORS = _words("red, blue, green, yellow, orange, purple, pink, brown, black, white, gray, gold, silver, violet")
THINGS = _pairs(
    """the sky: blue, grass: green, snow: white, a banana: yellow, blood: red, coal: black, a carrot: orange,
    milk: white, a lemon: yellow, a strawberry: red, the sea: blue, chocolate: brown, a frog: green,
    an eggplant: purple, a flamingo: pink, a polar bear: white, a crow: black, a tomato: red, the sun: yellow,
    a leaf: green, cheese: yellow, a pumpkin: orange, an elephant: gray, a swan: white, honey: gold"""
)
KINDS = {
    "animal": _words(
        "cat, dog, horse, cow, lion, tiger, bear, fox, rabbit, mouse, elephant, wolf, sheep, goat, monkey"
    ),
    "fruit": _words("apple, banana, orange, pear, grape, cherry, lemon, peach, plum, mango, melon, kiwi"),
    "vegetable": _words("carrot, potato, onion, tomato, cabbage, pea, bean, pepper, leek, spinach"),
    "bird": _words("crow, swan, owl, eagle, parrot, robin, sparrow, duck, goose, penguin"),
    "planet": _words("Mercury, Venus, Earth, Mars, Jupiter, Saturn, Uranus, Neptune"),
    "tree": _words("oak, pine, birch, maple, willow, beech, cedar, elm"),
    "flower": _words("rose, tulip, daisy, lily, violet, sunflower, poppy, orchid"),
    "country": _words("France, Japan, Brazil, Canada, Kenya, India, Spain, Norway, Mexico, Egypt"),
    "city": _words("Paris, London, Tokyo, Berlin, Rome, Madrid, Cairo, Oslo, Lima, Vienna"),
    "drink": _words("water, tea, coffee, milk, juice, lemonade, cocoa"),
    "sport": _words("football, tennis, swimming, running, golf, hockey, rowing, cycling"),
    "instrument": _words("piano, guitar, violin, flute, drum, trumpet, harp, cello"),
    "metal": _words("iron, gold, silver, copper, tin, lead, zinc"),
    "shape": _words("circle, square, triangle, rectangle, oval, star, hexagon"),
    "season": _words("spring, summer, autumn, winter"),
    "color": COLORS,
}
IRREGULAR_KINDS = {"country": "countries", "city": "cities"}

DAYS = _words("Monday, Tuesday, Wednesday, Thursday, Friday, Saturday, Sunday")
MONTHS = _words("January, February, March, April, May, June, July, August, September, October, November, December")
ORDINALS = _words("first, second, third, fourth, fifth, sixth, seventh, eighth, ninth, tenth, eleventh, twelfth")
NUMBERS = _words(
    """zero, one, two, three, four, five, six, seven, eight, nine, ten, eleven, twelve, thirteen, fourteen, fifteen,
    sixteen, seventeen, eighteen, nineteen, twenty"""
)
HOW_MANY = _pairs(
    """days are in a week: seven, months are in a year: twelve, hours are in a day: twenty-four,
    minutes are in an hour: sixty, seconds are in a minute: sixty, legs does a dog have: four,
    legs does a spider have: eight, legs does a bird have: two, legs does an ant have: six,
    wheels does a car have: four, wheels does a bicycle have: two, sides does a triangle have: three,
    sides does a square have: four, sides does a hexagon have: six, seasons are in a year: four,
    letters are in the alphabet: twenty-six, fingers are on a hand: five, planets go around the sun: eight,
    days are in a year: three hundred and sixty-five, weeks are in a year: fifty-two"""
)
SOUNDS = _pairs(
    """cow: moo, dog: woof, cat: meow, duck: quack, sheep: baa, pig: oink, lion: roar, owl: hoot, horse: neigh,
    frog: ribbit, bee: buzz, snake: hiss, mouse: squeak, crow: caw"""
)
YOUNG = _pairs(
    """dog: puppy, cat: kitten, cow: calf, horse: foal, sheep: lamb, pig: piglet, duck: duckling, bear: cub, lion: cub,
    goat: kid, hen: chick, frog: tadpole, swan: cygnet, deer: fawn"""
)
OPPOSITES = _pairs(
    """hot: cold, big: small, up: down, fast: slow, happy: sad, day: night, light: dark, open: closed, left: right,
    old: young, tall: short, wet: dry, full: empty, hard: soft, rich: poor, strong: weak, early: late, near: far,
    first: last, yes: no, good: bad, black: white, in: out, on: off, clean: dirty, high: low, loud: quiet, thick: thin,
    sweet: sour, true: false, win: lose, buy: sell, push: pull, begin: end, love: hate, always: never, inside: outside,
    above: below, heavy: light, easy: difficult, safe: dangerous, wide: narrow, deep: shallow, asleep: awake"""
)
AMBIGUOUS = {"light"}
"""Words with two opposites: never asked for by the second."""
PLURALS = _pairs(
    """cat: cats, dog: dogs, mouse: mice, child: children, foot: feet, tooth: teeth, man: men, woman: women,
    goose: geese, sheep: sheep, fish: fish, box: boxes, bus: buses, city: cities, baby: babies, story: stories,
    leaf: leaves, knife: knives, wolf: wolves, book: books, car: cars, tree: trees, house: houses, apple: apples,
    berry: berries, church: churches, dish: dishes, potato: potatoes, person: people, ox: oxen, shelf: shelves,
    block: blocks, token: tokens, batch: batches, slot: slots, query: queries, key: keys, step: steps, day: days"""
)
SPELLING = _words(
    """cat, dog, sun, moon, star, tree, house, water, bread, apple, table, chair, green, blue, river, stone, cloud,
    batch, block, token, slot, step, queue, model, cache, light, night, music, paper, pencil, window, garden, winter,
    summer, friend, hello, train, plane, horse, mouse, sheep, tiger, snake, world, happy, school, flower, orange,
    banana, lemon, zebra, rain, snow, fire, ship, bird, fish, book, door, hand, heart, king, queen, milk, salt, sand,
    wind, wood"""
)
GREETINGS = {
    "hello": "Hello! How can I help you today?",
    "hi": "Hi! What can I do for you?",
    "good morning": "Good morning! I hope you slept well.",
    "good evening": "Good evening! How was your day?",
    "good night": "Good night! Sleep well.",
    "goodbye": "Goodbye! Have a nice day.",
    "thank you": "You are welcome!",
    "thanks": "You are welcome!",
    "how are you": "I am fine, thank you. How are you?",
    "who are you": "I am a very small language model that ships with batchscope.",
    "what is your name": "My name is Embedded. I am a very small language model.",
    "what can you do": (
        "I can do small sums, count, name colors and capitals, spell words, tell short stories, and explain the words "
        "of batching. I am very small, so please ask me simple things."
    ),
    "are you a robot": "I am a very small language model, so in a way, yes.",
    "how old are you": "I have no age. I am a very small language model.",
    "see you later": "See you later! Take care.",
    "welcome": "Thank you! It is good to be here.",
    "good afternoon": "Good afternoon! How can I help you?",
    "nice to meet you": "Nice to meet you too!",
    "i am sad": "I am sorry to hear that. I hope it gets better.",
    "i am happy": "I am happy to hear that!",
    "help": "Ask me something simple, like a sum, a capital or a color.",
    "test": "It works!",
    "ok": "Good! What else can I do?",
    "tell me something": "A week has seven days, and a year has twelve months.",
    "tell me about yourself": "I am a very small language model. I know some sums, words and capitals.",
    "tell me a joke": "Why did the token wait in the queue? Because the batch was full!",
    "tell me a fact": "A week has seven days, and a year has fifty-two weeks.",
    "sing a song": "La la la, one token more, la la la, and then comes four.",
    "say nothing": "...",
}

GLOSSARY = {
    "a slot": (
        "A slot is a seat in the batch. One request holds it from the moment it is admitted until it ends or is "
        "preempted. When the request ends, the slot is free and the next waiting request can take it."
    ),
    "a block": (
        "A block is a small piece of the KV cache. It holds the keys and values of a fixed number of tokens, often "
        "sixteen. A request takes blocks one by one as it grows, so little memory is lost."
    ),
    "a block table": (
        "A block table lists the blocks that each request holds, in order. The attention kernel reads it to find the "
        "keys and values of a token. Only new entries have to be sent to the device."
    ),
    "padding": (
        "Padding is work on rows that belong to no request. It appears when sequences of different lengths are put "
        "into one rectangle. The padded rows are computed and then thrown away, so padding is waste."
    ),
    "a batch": (
        "A batch is a group of requests that are computed together. The weights of the model are read once for all of "
        "them, so a larger batch gives more tokens per second."
    ),
    "continuous batching": (
        "Continuous batching decides after every step who runs next. A request that ends leaves the batch at once, "
        "and a waiting request takes its place. No slot has to wait for the longest request, so the device stays busy."
    ),
    "static batching": (
        "Static batching starts a group of requests together and ends when the longest one is done. Short requests "
        "keep their slots while nothing useful is computed for them. New requests must wait for the whole group."
    ),
    "TTFT": (
        "TTFT is the time to first token. It runs from the arrival of a request to the delivery of its first token. "
        "It contains the time in the queue and the prefill of the prompt."
    ),
    "ITL": (
        "ITL is the inter-token latency, the time between two tokens of one request. A long prefill in the same step "
        "makes it larger for everyone."
    ),
    "TPOT": (
        "TPOT is the time per output token. It is the time from the first token to the last one, divided by the number "
        "of tokens after the first."
    ),
    "goodput": (
        "Goodput counts only the requests that met every promise on their latency. A server can have a high throughput "
        "and still a low goodput, when most answers come too late."
    ),
    "throughput": (
        "Throughput is how much work is done in a second, counted in tokens or in requests. Large batches raise it, "
        "and often make each request slower."
    ),
    "latency": (
        "Latency is how long one request takes, from its arrival to its last token. It is the sum of waiting, prefill "
        "and decode."
    ),
    "prefill": (
        "Prefill computes the whole prompt of a request and fills its part of the KV cache. It works on many tokens at "
        "once, so it is limited by arithmetic. At its end the first token is sampled."
    ),
    "decode": (
        "Decode makes one new token per request and step. It reads all the weights and the KV cache for that one "
        "token, so it is limited by memory bandwidth. That is why many requests should decode together."
    ),
    "chunked prefill": (
        "Chunked prefill cuts a long prompt into pieces that fit the token budget of a step. Other requests decode in "
        "the same steps, so they are not held up by the long prompt."
    ),
    "the KV cache": (
        "The KV cache keeps the keys and values of all tokens seen so far. Without it every new token would need the "
        "whole sequence to be computed again. It is split into blocks."
    ),
    "preemption": (
        "Preemption takes the blocks of a running request away when memory is short. The request goes back to the "
        "queue and is computed again later. Its output tokens are kept."
    ),
    "prefix caching": (
        "Prefix caching keeps the blocks of earlier prompts. When a new prompt begins with the same tokens, those "
        "blocks are used again and need not be computed. This makes the first token come sooner."
    ),
    "a token": (
        "A token is a piece of text, a word or a part of one. The model reads tokens and writes one token at a time."
    ),
    "a step": (
        "A step is one run of the model over the batch. The scheduler plans it, the device computes it, and each "
        "request that has caught up gets one new token."
    ),
    "a scheduler": (
        "A scheduler decides for every step which requests run and how many tokens of each are computed. It looks at "
        "the token budget, the free slots and the free blocks."
    ),
    "a request": (
        "A request is a prompt that somebody sent, together with the answer that the model writes to it. It waits, it "
        "runs, and it finishes."
    ),
    "a prompt": "A prompt is the text that a request begins with. The model computes it first and then continues it.",
    "the token budget": (
        "The token budget is the largest number of tokens that one step may compute. Decodes take one token each, and "
        "what is left goes to prefills."
    ),
    "attention": (
        "Attention lets each token look at the tokens before it. It compares a query with all keys and mixes the "
        "values. Its cost grows with the length of the context."
    ),
    "a ragged batch": (
        "A ragged batch lays all tokens in one flat row, one request after the other. Nothing is padded, so every "
        "computed row is useful."
    ),
    "head of line blocking": (
        "Head of line blocking means that the first request in the queue cannot start, and so nobody behind it can "
        "start either."
    ),
    "a queue": "A queue holds the requests that wait for a slot. Who came first is served first.",
    "speculative decoding": (
        "Speculative decoding lets a small model guess several tokens ahead. The large model checks them all in one "
        "step and keeps the right ones."
    ),
    "a GPU": (
        "A GPU is a device with thousands of small arithmetic units. It is fast when many tokens are computed "
        "together, and mostly waits for memory when there are few."
    ),
    "slot occupancy": (
        "Slot occupancy is the share of the slots that hold an unfinished request. A high value means that little of "
        "the batch is wasted."
    ),
}
