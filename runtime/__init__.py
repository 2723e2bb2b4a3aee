"""Runs a build: requests in, text out.

    requests/    prompts      from what a caller passes to `Request`s
                 llm          `LLM`: generate, chat, score, stream; who gets which delta
                 config       `LLMConfig`: how a build is loaded
                 loop         one step: carries out the scheduler's `Schedule` on an executor
                 scheduler    which batch slots to decode, and whose piece of prefill is next
                 generation   one live request: its tokens, random numbers, text and end
                 speculation  which guesses of the next tokens a step checks; methods/ make them
                 processors   change logits before a token is chosen
                 parked_rows  rows of earlier prompts, in memory and in files
    engine/      executor     takes pieces, decodes, and owns the caches; made by open_executor
                 chunks       the taker of a prompt's chunks, or of a whole prompt
                 followers    what has state for each batch slot
                 method       what a cache method adds (`methods/*/run.py`): takers, followers
                 rows         `Row`: what a batch slot holds: view, copy_out, copy_in
                 backend      `GraphBackend`: what runs the graphs
    ort/ openvino/ trt/    ONNX Runtime, OpenVINO and TensorRT as backends
    ranks/       an executor over several processes
    chat/        from a conversation to a request, by the build's chat template; reads answers
    confined     runs a worker in a process of its own, whose time and memory are bounded

Work after a prompt's chunks, such as another vote, belongs to a method: `further` in its spec.py,
and a taker in its run.py. tests/methods/toy is one.

Needs NumPy, tokenizers and a backend's library, never torch or transformers. Importing this package
loads none of them.
"""
