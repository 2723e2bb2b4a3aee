"""Forms of few bits: how a weight of 4 or 8 bits becomes initializers, and is read back.

A tensor becomes integers (`integers.py`) that are read from the checkpoint or rounded
(`rounding.py`), or stays in fp8 (`fp8.py`): `choice.py` decides, by `--weights`. A build stores
each in parts, a file each (`parts.py`): integers, scales, zeros. `trace/marking.py` makes these
initializers in the place of the weight's.
"""
