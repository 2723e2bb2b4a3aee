"""The contract between a build and a run: geometry, tensor names, manifest and errors.

Imports no other package of snapexport, and no framework.
"""
