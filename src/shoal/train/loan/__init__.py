"""The state of a run, lent to a newcomer while the others train: so they wait for what changed last, and no more.

lender      between two steps: the state ── before every update from then on: what the optimizer is about to use
borrower    takes the state, makes the same updates, compares ── then asks to be let in
            and gets what was still under way, and all that is small, by `checkpoint/handover.py`

It pays where updates are small, as those of sparsifiers are: a record of one holds what is not zero. Updates of all
parameters on a slow link cost as much to tell as to wait for, and are not lent.
"""
