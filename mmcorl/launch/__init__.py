"""Where agents live: in this process, or as Ray actors on the GPUs of one machine or many.

A launcher turns a config and its readers into a `Cohort`: the agents that `cotrain` calls, and the `parallel` it
starts their calls with. The method does not know which one it runs under.
"""
