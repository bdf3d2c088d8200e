"""A bad network on one machine: hosts as network namespaces, links with rate, delay, loss and cuts.

Read spec.py (what a lab is), timeline.py (what happens in it, when), lab.py (the running thing), link.c (the switch).
"""
