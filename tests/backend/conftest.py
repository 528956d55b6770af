"""One torch thread: two on shared cores wait for each other."""

from __future__ import annotations

import torch

torch.set_num_threads(1)
