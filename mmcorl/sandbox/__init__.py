"""Model-written code: find the program of a response, and run it in a confined process.

Off by default: `open_sandbox(run_code=True)` is the only way to a sandbox, and everything that runs code takes one.
THREATS.md lists what is isolated by which layer, and what is not.
"""
