"""Types of NumPy arrays that several modules share."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
F32 = NDArray[np.float32]
Bytes = NDArray[np.uint8]
