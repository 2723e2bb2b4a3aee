"""Keeps chunks of prompts' full-length caches on disk, for prompts that begin alike.

    keeper.py      between the prompt cache in memory and the store
    store.py       writes in the background, and looks chunks up
    folder.py      files by key in a folder, bounded in bytes; several processes may share it
    chunk_file.py  a chunk as the bytes of a file

It is a cache: whatever is wrong with it, a prompt is prefilled.
"""
