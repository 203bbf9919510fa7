"""`python -m gpu_check.fake_gpu CONFIG [--batch-by-batch]`: the records of `mmcorl doctor CONFIG --dry --json`.

With the option attention is computed as where no kernel takes segments (`model_adapters/varlen.py`).
"""

import json
import os
import sys

from gpu_check.fake_gpu import library

if __name__ == "__main__":
    library.load()
    from gpu_check.fake_gpu.report import examine
    from mmcorl.config import load
    from model_adapters import varlen

    if "--batch-by-batch" in sys.argv:
        varlen.KERNELS.clear()
    print(json.dumps(list(examine(load(sys.argv[1])))), flush=True)
    # torch's backward thread of the device may still run when a process ends in order, which then aborts.
    os._exit(0)
