"""OpenAI's HTTP interface in front of a `Generator`.

    body -> protocol -> preprocess -> streaming -> generator
            fields      token ids     n answers       |
    answer <- responses, logprobs <- streaming <- outputs

`api_server` joins them into routes; `http_server` listens and drains. Needs starlette and uvicorn;
knows neither the LLM nor Triton.
"""
