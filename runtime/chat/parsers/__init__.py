"""Splits what a model writes into content, reasoning and tool calls.

    parser           the protocol: feed text, get events; calls of parsed JSON
    tool_parser      finds calls in text by a family's syntax
    json_calls       Hermes and Qwen, Granite, Llama 3, Mistral, DeepSeek
    xml_calls        calls in tags: Qwen3-Coder
    literal_calls    FunctionGemma and Gemma 4; Llama 4's Python
    reasoning        between two texts, such as <think> and </think>; the channels of gpt-oss
    answer_grammars  grammars that force calls, or let reasoning come before a form
    table            a row for each format, and which one a chat template writes

A call in JSON or tags is passed on as it comes, once its arguments begin and if its tool is known.
Every other call is passed on once it is complete and valid; what only looks like a call stays text.
Knows no HTTP. Importing this package loads nothing.
"""
