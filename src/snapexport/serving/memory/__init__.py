"""Bounds the memory of a server's process, before anything is loaded, and holds it to the bound.

parts     the bound and its parts, each with its source
build     what a build takes: libraries, weights, caches, work of its graphs
bound     what requests take, and the queue that fits into a given memory
process   the resident memory of this process, and its allocator
watch     refuses and ends requests where the memory comes near its bound
"""
