"""Finding the first of many strings in text that comes piece by piece (Aho and Corasick, 1975)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from functools import lru_cache

START = 0


class StopAutomaton:
    """Reads text character by character; a state stands for the longest end of the text that begins some stop string.

    Aho, Corasick: "Efficient string matching", CACM 18(6), https://doi.org/10.1145/360825.360855. The cost of a
    character does not depend on how many strings there are.

    Args:
        stops: what to find; none of them empty.

    Attributes:
        match: by state, the stop string that is complete there (the longest, when several are), or None.
        held: by state, how many of the last characters may yet become a stop string.
    """

    def __init__(self, stops: Iterable[str]) -> None:
        self._next: list[dict[str, int]] = [{}]
        self._back = [START]
        """By state: that of the next shorter end of the text."""
        self.match: list[str | None] = [None]
        self.held = [0]
        for stop in stops:
            self._insert(stop)
        self._link()

    def step(self, state: int, character: str) -> int:
        """The state after one more character."""
        while state and character not in self._next[state]:
            state = self._back[state]
        return self._next[state].get(character, START)

    def _insert(self, stop: str) -> None:
        state = START
        for depth, character in enumerate(stop, 1):
            if character not in self._next[state]:
                self._next[state][character] = len(self._next)
                self._next.append({})
                self._back.append(START)
                self.match.append(None)
                self.held.append(depth)
            state = self._next[state][character]
        self.match[state] = stop

    def _link(self) -> None:
        """Breadth first: the next shorter ends, and what they know."""
        queue = deque(self._next[START].values())
        while queue:
            state = queue.popleft()
            back = self._back[state]
            self.match[state] = self.match[state] or self.match[back]
            if not self._next[state]:  # nothing longer begins so
                self.held[state] = self.held[back]
            for character, child in self._next[state].items():
                self._back[child] = self.step(back, character)
                queue.append(child)


@lru_cache(maxsize=64)
def automaton(stops: tuple[str, ...]) -> StopAutomaton:
    """The automaton of these stop strings; requests with the same ones share it."""
    return StopAutomaton(stops)
