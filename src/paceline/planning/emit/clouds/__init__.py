"""Files that rent nodes: SkyPilot and dstack, and their names of devices and providers."""
