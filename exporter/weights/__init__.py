"""Weights: read block by block, under the model's names, in few bits, and written as a file each.

readers/   a quantizer's format each: the parts in a checkpoint become a tensor
forms/     what a build stores in few bits: integers, floats of 4 bits, fp8
"""
