"""A GPU that computes nothing, for machines without one: what an update asks of a GPU, counted instead of computed.

    python -m gpu_check dry CONFIG [--json]

runs the real update of each agent of a config at full size: policy, shared prefix, chunked head, checkpointing, clip
and fused AdamW. Two micro-batches of a 3B model take a minute or two on one core and less than 2 GB. It tells kernels,
arithmetic, bytes at the peak and whose they are, where the host waits for the device and which attention kernels are
taken, and raises where tensors of two devices meet.

In Python, in a process that has not imported torch:

    from gpu_check.fake_gpu import library
    library.load()                      # compiles device.cpp with g++ on first use
    from gpu_check.fake_gpu.device import FakeGpu
    with FakeGpu() as gpu:
        gpu.hold(model)                 # built on the meta device (`model_adapters.loading.random_weights`) or the CPU
        gpu.know(list(model.parameters()))
        gpu.start()
        ...                             # what this does on "cuda" is recorded
    gpu.total().count, gpu.memory.peak, gpu.memory.owners(), gpu.waits, gpu.total().attention

`update.run(config, agent, folder)` does this for an agent of a config; `models.build` writes a checkpoint folder
without weights for a model of `model_adapters.testing.shapes.HUB`.

How: a C++ library registers the device with torch (`device.cpp`), tensors on it are torch's fake ones, and a dispatch
mode sees every operator (`device.py`). Not seen: kernels' workspaces, fragmentation, values. Times are a model.
"""
