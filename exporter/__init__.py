"""Traces a Hugging Face checkpoint into ONNX graphs with markers, and writes its weights.

    read/      what `--model` names becomes a `Checkpoint`: configs, tokenizer, tensors by name
    model/     transformers' model of it, without weights: what it is (`probe/`), how it is marked
    weights/   tensors under the model's names, in few bits, as a file each
    trace/     the marked model becomes ONNX graphs, which read the weights' files

The way of a weight: `weights/readers/` makes a tensor of a quantizer's parts, and
`weights/conversion.py` and `derived.py` give it the name and the layout that graphs read. Between
them `adapter.py` merges a LoRA adapter.
`weights/forms/choice.py` says whether the build holds it in few bits, and `trace/marking.py` lets
the graphs read it so. `weights/place.py` writes its file, or the files of its parts
(`weights/forms/parts.py`). At last `trace/link.py` makes its initializer a reference into them.

Tests are in the folders of the same names in `tests/exporter/`. Does not know cache policies or
targets, which `graphs/` applies to the traces.
"""
