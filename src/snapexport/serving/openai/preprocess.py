"""Turns a body into the runtime's requests: token ids and sampling parameters.

The runtime checks the prompts. Knows no HTTP.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from snapexport.runtime.chat.chat_prompts import ChatPrompts, ending, require_free
from snapexport.runtime.chat.parsers.tool_parser import call_id
from snapexport.runtime.requests.prompts import require_usable
from snapexport.runtime.requests.request import Request, SamplingParams
from snapexport.runtime.requests.structured_outputs import StructuredOutputs
from snapexport.serving.model import Model
from snapexport.serving.openai.answers import Reading
from snapexport.serving.openai.errors import UNSUPPORTED, ApiError, client_errors, invalid
from snapexport.serving.openai.messages_body import MessagesRequest
from snapexport.serving.openai.protocol import (
    ChatRequest,
    CompletionRequest,
    Conversation,
    RequestBody,
)
from snapexport.serving.openai.responses_body import ResponsesRequest
from snapexport.serving.openai.tools import NamedTool, schemas, strict_names

MOST_ANSWERS = 64
"""Most answers of one body: prompts times n."""


_PLAIN = Reading()


@dataclass(frozen=True, slots=True)
class Prepared:
    """What the runtime runs for one body.

    requests: n for each prompt, in a row. prompt_tokens: of all prompts, each counted once.
    echoes: the text before each answer, if the body has `echo`. first_tokens: the prompt's first
    token of each answer, if the prompt's tokens have log probabilities: it alone has none.
    reading: of the answers' text. form_field: what the structured outputs in the requests'
    parameters come from, which are compiled afterwards.
    """

    requests: Sequence[Request]
    prompt_tokens: int
    echoes: Sequence[str] = ()
    first_tokens: Sequence[int] = ()
    reading: Reading = _PLAIN
    form_field: str = ""

    @property
    def has_forms(self) -> bool:
        return any(one.params and one.params.structured_outputs for one in self.requests)


def chat(model: Model, body: ChatRequest) -> Prepared:
    """The chat's request, n times. Raises ApiError."""
    _require_room(model, body, 1)
    text = rendered(model, body)
    with client_errors("messages"):
        request = model.read(model.encode(text))
        request = replace(request, park_at=_park_at(model, body, request))
    requests = _answers(model, body, [request])
    chosen = [_ended(model, body, one.params) for one in requests if one.params]
    has_form = any(one.structured_outputs for one in chosen)
    before = _before_form(model, body, text) if has_form else ""
    around = _or_calls(model, body, before) if has_form else ""
    params = [_within(around, one) for one in chosen]
    return Prepared(
        [replace(one, params=own) for one, own in zip(requests, params, strict=True)],
        len(request.prompt_token_ids),
        # In its form from the first token on, an answer has no reasoning.
        reading=_reading(model, body, text if before or not has_form else None),
        form_field="tools" if body.forced_tools else body.form_field,
    )


def _before_form(model: Model, body: ChatRequest, prompt: str) -> str:
    """The grammar of reasoning before a form; empty if a form begins at once."""
    options = body.template_options
    is_off = False in (options.get("enable_thinking"), options.get("thinking"))
    may_begin = not is_off and not body.continue_final_message
    return model.output_format.before_form(prompt, may_begin, model.added_tokens)


def _or_calls(model: Model, body: ChatRequest, before: str) -> str:
    """The grammar around a form that lets the model call its tools instead."""
    tools = [] if body.forced_tools else body.usable_tools
    if not tools:
        return before
    with client_errors("tools"):
        return model.output_format.or_calls(
            before, schemas(tools), strict_names(tools), model.added_tokens
        )


def _within(around: str, params: SamplingParams) -> SamplingParams:
    """The parameters with what may come before the form or in its place, if there are both."""
    form = params.structured_outputs
    if not around or form is None:
        return params
    return replace(params, structured_outputs=replace(form, within=around))


def in_other_words(model: Model, body: ResponsesRequest | MessagesRequest) -> Prepared:
    """The request of a body that stands for a chat's. Raises ApiError, with its own fields."""
    try:
        prepared = chat(model, body.as_chat())
    except ApiError as error:
        raise error.renamed(body.own_fields) from None
    field = prepared.form_field
    return replace(prepared, form_field=body.own_fields.get(field, field))


def _park_at(model: Model, body: Conversation, request: Request) -> int:
    """Where the prompt's row is parked, for the next turn."""
    if not model.llm.parks or not body.add_generation_prompt:
        return 0
    messages = [turn.model_dump(exclude_none=True) for turn in body.messages]
    tools = [tool.as_json() for tool in body.usable_tools] or None
    return chats(model).park_at(request.prompt_token_ids, messages, body.template_options, tools)


def _ended(model: Model, body: ChatRequest, params: SamplingParams) -> SamplingParams:
    """The parameters with the template's end token, and with the tokens that a parser reads."""
    if model.output_format.needs(model.special_texts, bool(body.usable_tools)):
        params = replace(params, skip_special_tokens=False)
    if body.forced_tools:  # response_format is then that of later answers, as with OpenAI
        if params.structured_outputs and body.form_field != "response_format":
            message = f"{body.form_field} and a tool_choice that forces a call prescribe two forms"
            raise invalid(message, "tool_choice")
        params = replace(params, structured_outputs=_calls(model, body))
    return chats(model).ending(params)


def _calls(model: Model, body: ChatRequest) -> StructuredOutputs:
    """The form of an answer that is a call of a named tool, or calls. Raises ApiError."""
    tools = body.forced_tools
    # Small models don't end a list of calls: several are for clients that ask for them.
    asked = body.parallel_tool_calls and "parallel_tool_calls" in body.model_fields_set
    several = asked and not isinstance(body.tool_choice, NamedTool)
    with client_errors("tools"):
        grammar = model.output_format.grammar(
            schemas(tools), strict_names(tools), model.added_tokens, several
        )
        return StructuredOutputs(grammar=grammar, writes_json=True)


def _reading(model: Model, body: ChatRequest, prompt: str | None) -> Reading:
    """How the answers to a prompt are read. prompt: None if they have no reasoning."""
    known, tools = model.output_format, schemas(body.usable_tools)
    parser = partial(known.parser, tools, prompt or "")
    if body.forced_tools:
        parser = partial(known.forced_parser, tools, prompt)
    new_id = known.tools.new_id if known.tools else call_id
    return Reading(parser, new_id, body.parallel_tool_calls)


def rendered(model: Model, body: Conversation) -> str:
    """The prompt's text, by the chat template. Raises ApiError."""
    with client_errors("chat_template_kwargs"):
        require_free(body.template_options)
    messages = [turn.model_dump(exclude_none=True) for turn in body.messages]
    end = ending(body.add_generation_prompt, body.continue_final_message)
    tools = [tool.as_json() for tool in body.usable_tools]
    if tools:
        _require_tools(model, bool(body.forced_tools))
    with client_errors("messages"):
        return chats(model).text(messages, body.template_options, end, tools or None)


def _require_tools(model: Model, is_forced: bool) -> None:
    """Raise ApiError if the template shows no tools, or nobody knows how it writes calls."""
    with client_errors("tools"):
        chats(model).require_tools()
    if model.output_format.is_unknown and not is_forced:
        raise invalid(
            "no parser knows the tool calls of this chat template: start the server with "
            "--tool-parser NAME, or with none to get them as text",
            "tools",
            UNSUPPORTED,
        )


def chats(model: Model) -> ChatPrompts:
    """What turns chats into prompts. Raises ApiError for a build without a template."""
    if model.chat is None:
        raise invalid(
            "the build has no chat template: use /v1/completions, or copy the checkpoint's "
            "chat_template.jinja into the build",
            code="no_chat_template",
        )
    return model.chat


def completion(model: Model, body: CompletionRequest) -> Prepared:
    """A request for each prompt, n times in a row. Raises ApiError."""
    _require_room(model, body, len(body.prompt))
    with client_errors("prompt"):
        prompts = [model.read(prompt) for prompt in body.prompt]
    echoes = []
    if body.echo and model.tokenizer:
        decode = model.tokenizer.decode
        echoes = [text if isinstance(text, str) else decode(text) for text in body.prompt]
    answers = _answers(model, body, prompts)
    scored = [_scored(answer, body) for answer in answers] if body.scores_prompt else []
    return Prepared(
        scored or answers,
        sum(len(prompt.prompt_token_ids) for prompt in prompts),
        [text for text in echoes for _ in range(body.n)],
        [answer.prompt_token_ids[0] for answer in scored],
        form_field=body.form_field,
    )


def _scored(request: Request, body: CompletionRequest) -> Request:
    """All tokens of its prompt but the first go through decode, which tells their probabilities."""
    first, *others = request.prompt_token_ids
    if body.max_tokens == 0 and not others:
        raise invalid("a prompt of one token has nothing to score", "prompt")
    return replace(
        request,
        prompt_token_ids=(first,),
        continuation=tuple(others),
        prompt_logprobs=body.logprobs,
        params=None if body.max_tokens == 0 else request.params,
    )


def compiled(model: Model, prepared: Prepared) -> Prepared:
    """The same requests with the grammars of their structured outputs, from whatever field.

    It may take seconds, in a thread. Raises ApiError.
    """
    with client_errors(prepared.form_field):
        requests = [model.llm.constrained(request) for request in prepared.requests]
    return replace(prepared, requests=requests)


def _require_room(model: Model, body: RequestBody, prompts: int) -> None:
    most = min(MOST_ANSWERS, model.most_answers)
    if prompts * body.n > most:
        raise invalid(f"one request may have {most} answers, prompts x n", "n")


def _answers(model: Model, body: RequestBody, prompts: Sequence[Request]) -> list[Request]:
    """Each prompt n times, with the body's parameters."""
    session = body.prompt_cache_key or ""
    return [
        replace(
            prompt, params=_params(model, body, len(prompt.prompt_token_ids), n), session=session
        )
        for prompt in prompts
        for n in range(body.n)
    ]


def _params(model: Model, body: RequestBody, prompt_length: int, index: int) -> SamplingParams:
    left = model.limits.positions - prompt_length + 1
    limit = body.token_limit or model.defaults.get("max_tokens") or body.default_tokens or left

    def chosen(name: str) -> Any:
        own = getattr(body, name)
        return own if name in body.model_fields_set else model.defaults.get(name, own)

    with client_errors("min_tokens"):  # the other fields have their limits already
        params = SamplingParams(
            max_tokens=min(limit, left),
            temperature=chosen("temperature"),
            top_p=chosen("top_p"),
            top_k=max(chosen("top_k"), 0),
            seed=None if body.seed is None else body.seed + index,
            stop=tuple(body.stop),
            ignore_eos=body.ignore_eos,
            logprobs=body.top_logprobs_count,
            stop_token_ids=body.stop_token_ids,
            presence_penalty=body.presence_penalty,
            frequency_penalty=body.frequency_penalty,
            repetition_penalty=chosen("repetition_penalty"),
            min_p=chosen("min_p"),
            logit_bias=body.logit_bias or None,
            min_tokens=body.min_tokens,
            skip_special_tokens=body.skip_special_tokens,
        )
    with client_errors(body.form_field):
        params = replace(params, structured_outputs=body.form())
    with client_errors("logit_bias"):
        require_usable(params, model.tokenizer, model.limits)
    return params
