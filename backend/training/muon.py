"""Muon: momentum whose matrices are made orthogonal before each step (Jordan et al., 2024).

Source: https://kellerjordan.github.io/posts/muon/. torch's own computes in bfloat16, which CPUs without bfloat16
arithmetic do twenty times slower than float32; this one stays in float32 and takes matrices of one shape together.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import torch

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Of the quintic ``a x + b x^3 + c x^5`` that drives every singular value towards 1, from the source."""
ITERATIONS = 5


class Muon:
    """The optimizer for matrices; everything else belongs to AdamW.

    Args:
        weights: 2-dimensional parameters.
        momentum: share of the old average kept in each step; the step looks ahead by Nesterov's rule.
        weight_decay: share of a weight that a step of learning rate 1 would take off.
    """

    def __init__(
        self, weights: Iterable[torch.nn.Parameter], momentum: float = 0.95, weight_decay: float = 0.01
    ) -> None:
        by_shape: dict[torch.Size, list[torch.nn.Parameter]] = defaultdict(list)
        for weight in weights:
            by_shape[weight.shape].append(weight)
        self._groups = [(group, torch.zeros(len(group), *shape)) for shape, group in by_shape.items()]
        self._momentum, self._weight_decay = momentum, weight_decay

    @torch.no_grad()
    def step(self, lr: float) -> None:
        """Move all weights by their gradients, `lr` being the size of a step in units of the weights."""
        for group, average in self._groups:
            gradients = torch.stack([gradient for weight in group if (gradient := weight.grad) is not None])
            average.lerp_(gradients, 1 - self._momentum)
            rows, columns = average.shape[1:]
            updates = orthogonal(gradients.lerp(average, self._momentum)) * max(1.0, rows / columns) ** 0.5
            for weight, update in zip(group, updates, strict=True):
                weight.mul_(1 - lr * self._weight_decay).sub_(update, alpha=lr)


def orthogonal(matrices: torch.Tensor) -> torch.Tensor:
    """The orthogonal matrices next to these, roughly: all singular values between about 0.7 and 1.2.

    Args:
        matrices: (N, rows, columns).
    """
    a, b, c = COEFFICIENTS
    tall = matrices.size(1) > matrices.size(2)
    x = matrices.mT if tall else matrices
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(ITERATIONS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x
