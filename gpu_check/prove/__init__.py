"""`python -m gpu_check prove`: does this program do on a GPU what its tests say it does on a CPU, and how fast?

`plan` says what is measured, in which order and within which time; `numbers` how a number is judged and told; `stage`
holds the device and the model at work; the other modules measure.
"""
