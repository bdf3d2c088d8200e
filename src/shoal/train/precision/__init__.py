"""A joined model in few bits: one file per method. The script's models, optimizers and `state_dict` keys stay theirs.

    weights   fixed.py      rounds after every update
    dorefa    dorefa.py     layers compute in few bits, the optimizer updates full ones
    halp      halp.py       SVRG in few bits round an anchor; twin.py evaluates the script's loss at both

Noise is a hash of (seed, count, place), the same on all workers where weights are rounded: replicas stay equal.
"""
