"""A vector of a thousand values, and the names of the backends that are here."""

from __future__ import annotations

import numpy as np

from every_backend import labels

N = 1000
BACKENDS = sorted({label.partition("-")[0] for label in labels()})
X = np.linspace(-1, 1, N, dtype=np.float32)
