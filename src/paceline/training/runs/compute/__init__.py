"""Computing of a step as a strategy states it: precision, recomputation and compilation, by torch's own tools."""
