"""Runs a build: requests in, text out.

    prompts      from what a caller passes to `Request`s; text.py and sampling.py are their way back
    chat         from a conversation to a prompt, by the build's chat template
    llm          `LLM`: generate, chat, score, stream; who gets which delta
    loop         one step: carries out the scheduler's `Schedule` on an executor
    scheduler    which batch slots to decode, and which chunks to prefill
    generation   one live request: its tokens, random numbers, text and end
    executor     `Executor`: prefill, compress, decode, and the caches; made by open_executor
    hand_over    `Row`: what a batch slot holds, for another executor of the same build
    backend      `GraphBackend`: what runs the graphs; implemented by ort/ and trt/

requests.py has the nouns. Needs NumPy, tokenizers and a backend's library, never torch or
transformers. Importing this package loads none of them.
"""
