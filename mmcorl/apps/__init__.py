"""Applications on top of the core: pages, analyses, sweeps, machine checks, sharing."""
