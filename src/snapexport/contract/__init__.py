"""What a build and a run agree on: geometry, tensor names, the manifest, and how errors are told.

Depends on nothing else of ours, and on no framework.
"""
