"""Splits what a model writes into content, reasoning and tool calls.

    parser         the protocol: feed text, get events; and the events
    calls          a call from parsed JSON
    json_end       where a JSON value ends, in text that arrives piece by piece
    tool_parser    finds calls in text by a family's syntax
    json_reader    a call in JSON after a header, piece by piece where it can be
    json_calls     its syntax: Hermes and Qwen, Granite, Llama 3, Mistral, DeepSeek
    xml_calls      calls in tags: Qwen3-Coder
    json_types     which of JSON's types a tool's parameters may have
    gemma_calls    calls of FunctionGemma and Gemma 4
    python_calls   calls in Python's syntax: Llama 4
    harmony        the channels of gpt-oss, reasoning and calls alike
    thinking       reasoning between two texts, such as <think> and </think>
    table          a row for each format, and which one a chat template writes

A call in JSON or tags is told as it comes, once its arguments begin and if its tool is known. Every
other call is told once it is complete and valid; what looks like one and is not stays text. Knows
no HTTP. Importing this package loads nothing.
"""
