"""Writes stable_abi.txt: the names of CPython's stable ABI, by the version that added them.

    pip install abi3info
    python make_stable_abi.py > stable_abi.txt

abi3info restates CPython's Misc/stable_abi.toml. A line is a version and the names it added, sorted.
"""

import collections

import abi3info

added = collections.defaultdict(set)
for table in (abi3info.FUNCTIONS, abi3info.DATAS):
    for symbol, entry in table.items():
        added[entry.added.major, entry.added.minor].add(symbol.name)
for version in sorted(added):
    print("%d.%d" % version, *sorted(added[version]))
