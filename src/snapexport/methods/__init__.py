"""Cache methods: who votes on what is kept, in which form it is kept, and how prompts are taken.

Each method is a folder, and a row of `table.METHODS`:

    spec.py      its flags, rules, tensors, kinds of graphs, and words for people
    surgery.py   its passes and functions over ONNX graphs
    run.py       what takes its prefill work, follows its state or drafts, in NumPy
    measure.py   what calibrates it
    export.py    the traces that it needs beyond the common ones

`spec.py` is read wherever a build is read, so it imports nothing heavy. The other parts are loaded
where they are needed (`Method.part`). The layers loop over the records, and name no method.
"""
