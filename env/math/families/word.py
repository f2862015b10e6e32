"""Word problems: somebody has things, and a few events later one asks how many."""

from random import Random

from env.math.families.problem import ASK_FOR_LINES, Problem, chained

LEVELS = {1: (2, 20), 2: (3, 40), 3: (4, 60), 4: (5, 100), 5: (7, 200)}
"""Level -> how many events, and the largest number in one. Start values."""
NAMES = ("Ada", "Ben", "Chloe", "Dario", "Emma", "Farid", "Grace", "Hugo", "Ines", "Jonas", "Kavya", "Luis")
THINGS = ("marbles", "stamps", "shells", "cards", "apples", "buttons", "books", "coins", "beads", "stickers")
EVENTS = {
    "+": (
        "{name} buys {n} more.",
        "A friend gives {name} {n} {things}.",
        "Then {name} finds another {n}.",
        "{name} wins {n} {things} in a game.",
    ),
    "-": (
        "{name} gives {n} away.",
        "{name} loses {n} {things}.",
        "Then {n} of them are sold.",
        "{name} lends {n} {things} to a neighbour.",
    ),
    "*": (
        "A month later {name} has {n} times as many.",
        "The collection grows to {n} times its size.",
    ),
    "/": (
        "{name} puts them into {n} equal boxes and keeps one box.",
        "{name} shares them equally among {n} people and keeps one share.",
    ),
}


def make(rng: Random, level: int) -> Problem:
    """Returns a problem in which every event is one calculation; nothing becomes negative or broken."""
    number, largest = LEVELS[level]
    name, things = rng.choice(NAMES), rng.choice(THINGS)
    total = rng.randint(5, largest)
    said, lines = [f"{name} has {total} {things}."], []
    for place in range(number):
        op, operand = _event(rng, total, largest)
        said.append(rng.choice(EVENTS[op]).format(name=name, things=things, n=operand))
        lines.append(f"{f'<<{place - 1}>>' if place else total} {op} {operand}")
        total = {"+": total + operand, "-": total - operand, "*": total * operand, "/": total // operand}[op]
    question = f"{' '.join(said)} How many {things} does {name} have now? {ASK_FOR_LINES}"
    return chained(question, lines, lines)


def _event(rng: Random, total: int, largest: int) -> tuple[str, int]:
    divisors = [d for d in range(2, 10) if total % d == 0 and total > d]
    ops = "+" + ("-" if total > 2 else "") + ("*" if total <= 5 * largest else "") + ("/" if divisors else "")
    op = rng.choice(ops)
    if op == "/":
        return op, rng.choice(divisors)
    return op, {"+": rng.randint(2, largest), "-": rng.randint(1, max(1, total - 1)), "*": rng.randint(2, 4)}[
        op
    ]
